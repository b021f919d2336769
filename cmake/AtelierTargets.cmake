# atelier_library, atelier_test, atelier_executable, atelier_proto, atelier_isa_sources.
# Every target includes from the repository root, so an include path names its layer.
include(CheckCXXCompilerFlag)

add_library(atelier_warnings INTERFACE)
add_library(atelier::warnings ALIAS atelier_warnings)
target_compile_options(atelier_warnings INTERFACE -Wall -Wextra -Wconversion
  $<$<BOOL:${ATELIER_WERROR}>:-Werror>)

add_library(atelier_options INTERFACE)
target_include_directories(atelier_options INTERFACE
  ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
if(ATELIER_SANITIZER STREQUAL "address")
  target_compile_options(atelier_options INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(atelier_options INTERFACE -fsanitize=address,undefined -Wl,--undefined=__lsan_default_suppressions)
  add_library(atelier_lsan_suppressions STATIC ${PROJECT_SOURCE_DIR}/cmake/lsan_suppressions.cc)
  target_link_libraries(atelier_options INTERFACE atelier_lsan_suppressions)
elseif(ATELIER_SANITIZER STREQUAL "thread")
  target_compile_options(atelier_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(atelier_options INTERFACE -fsanitize=thread)
  # Makes absl::Mutex's ordering known to TSan (the file says how): every ATELIER_WRAP(result, symbol, …).
  set(tsan_abseil ${PROJECT_SOURCE_DIR}/cmake/tsan_abseil.cc)
  file(STRINGS ${tsan_abseil} wrappers REGEX "^ATELIER_WRAP\\(")
  list(TRANSFORM wrappers REPLACE "^ATELIER_WRAP.[a-z]+, ([A-Za-z0-9_]+),.*" "-Wl,--wrap=\\1")
  # The linker wraps what Abseil's shared libraries call too, so a program needs the wrappers even if it never locks.
  target_link_options(atelier_options INTERFACE ${wrappers} -Wl,--undefined=__wrap__ZN4absl7debian35Mutex4LockEv)
  add_library(atelier_tsan_abseil STATIC ${tsan_abseil})
  target_link_libraries(atelier_tsan_abseil PRIVATE absl::synchronization absl::time)
  target_compile_options(atelier_tsan_abseil PRIVATE -fsanitize=thread)
  target_link_libraries(atelier_options INTERFACE atelier_tsan_abseil)
elseif(NOT ATELIER_SANITIZER STREQUAL "")
  message(FATAL_ERROR "ATELIER_SANITIZER=${ATELIER_SANITIZER}: use address, thread or nothing")
endif()

# atelier_library(name SRCS a.cc … HDRS a.h … DEPS public… PRIVATE_DEPS private…)
# makes target atelier_<name> with alias atelier::<name>; a library without SRCS is an INTERFACE one.
function(atelier_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target atelier_${name})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS})
    target_link_libraries(${target} PUBLIC atelier_options ${ARG_DEPS}
      PRIVATE atelier::warnings ${ARG_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE atelier_options ${ARG_DEPS})
  endif()
  add_library(atelier::${name} ALIAS ${target})
  atelier_headers(${target} ${ARG_HDRS})
endfunction()

# atelier_headers(target a.h …): the headers of a library, of which the target all_verify_interface_header_sets compiles
# those alone that no source file of their own does: a.cc includes a.h first (tools/check_layers sees to it).
function(atelier_headers target)
  get_target_property(type ${target} TYPE)
  set(scope PUBLIC)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  endif()
  get_target_property(sources ${target} SOURCES)
  set(alone)
  set(compiled)
  foreach(header ${ARGN})
    string(REGEX REPLACE "\\.h$" ".cc" source ${header})
    if(source IN_LIST sources)
      list(APPEND compiled ${header})
    else()
      list(APPEND alone ${header})
    endif()
  endforeach()
  if(compiled)
    target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${compiled})
  endif()
  if(alone)
    target_sources(${target} ${scope} FILE_SET alone TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${alone})
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY alone)
  endif()
endfunction()

# atelier_executable(name SRCS main.cc DEPS …): a program in <build>/bin.
function(atelier_executable name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE atelier_options atelier::warnings ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Test code is compiled for quick compilation: in release at -O1, under AddressSanitizer at -O0 and without UBSan's checks
# of pointers, which double the time (the libraries under test keep all checks and -O1). Half of CI's time is compiling tests.
add_library(atelier_test_options INTERFACE)
if(ATELIER_SANITIZER STREQUAL "address")
  target_compile_options(atelier_test_options INTERFACE -O0 -fno-sanitize=null,alignment,vptr,object-size)
elseif(ATELIER_SANITIZER STREQUAL "")
  target_compile_options(atelier_test_options INTERFACE $<$<CONFIG:Release>:-O1>)
endif()

# atelier_test(name SRCS a_test.cc … DEPS … [LABELS unit] [TIMEOUT 120] [ARGS …] [TSAN_FILTER *Threads*] [SHARDS 2]): one
# binary, one ctest entry, or as many as SHARDS says, which run side by side (name_1of2, …). LABELS default to unit. Tests
# that use threads add the label concurrent (they run under tsan, of a long test only those that TSAN_FILTER matches), but
# not those that talk over gRPC: Debian's is not instrumented, and TSan would report all that its threads and ours hand to
# each other.
function(atelier_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;TSAN_FILTER;SHARDS" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  if(ARG_TSAN_FILTER AND ATELIER_SANITIZER STREQUAL "thread")
    list(APPEND ARG_ARGS --gtest_filter=${ARG_TSAN_FILTER})
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE atelier_options atelier_test_options atelier::warnings ${ARG_DEPS}
    GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name})
    if(ARG_SHARDS GREATER 1)
      set(entry ${name}_${shard}of${ARG_SHARDS})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${name} ${ARG_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    # COST: the long ones start first, so that none is left to run alone at the end.
    set_tests_properties(${entry} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT}
      ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${entry}.xml;GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# atelier_proto(name SRCS x.proto … [GRPC] DEPS …): C++ from .proto files under proto/, into <build>/generated/proto.
function(atelier_proto name)
  cmake_parse_arguments(ARG "GRPC" "" "SRCS;DEPS" ${ARGN})
  set(generated)
  foreach(src ${ARG_SRCS})
    get_filename_component(abs ${src} ABSOLUTE)
    file(RELATIVE_PATH rel ${PROJECT_SOURCE_DIR} ${abs})
    string(REGEX REPLACE "\\.proto$" "" stem ${rel})
    set(out ${PROJECT_BINARY_DIR}/generated/${stem})
    set(outputs ${out}.pb.cc ${out}.pb.h)
    set(args --cpp_out=${PROJECT_BINARY_DIR}/generated)
    if(ARG_GRPC)
      list(APPEND outputs ${out}.grpc.pb.cc ${out}.grpc.pb.h)
      list(APPEND args --grpc_out=generate_mock_code=false:${PROJECT_BINARY_DIR}/generated
        --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    add_custom_command(OUTPUT ${outputs}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/generated
      COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} ${args} ${abs}
      DEPENDS ${abs} VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  add_library(atelier_${name} STATIC ${generated})
  add_library(atelier::${name} ALIAS atelier_${name})
  target_link_libraries(atelier_${name} PUBLIC atelier_options protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_GRPC)
    target_link_libraries(atelier_${name} PUBLIC gRPC::grpc++)
  endif()
  if(ATELIER_SANITIZER STREQUAL "thread")
    # Under TSan protobuf's headers add a member to map fields, which the system's libprotobuf does not have.
    target_compile_options(atelier_${name} PUBLIC -U__SANITIZE_THREAD__)
  endif()
endfunction()

# atelier_isa_sources(target isa files…): adds files compiled with the flags of one instruction set; the
# naming rule gemm/<dtype>_<isa>.cc tells tools/check_isa_objects which objects those are. No other file gets -m flags.
function(atelier_isa_sources target isa)
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avxvnni ${flags_avx2} -mavxvnni)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma)
  set(flags_avx512vnni ${flags_avx512} -mavx512vnni)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  set(flags_avx512bf16vbmi ${flags_avx512bf16} -mavx512vbmi)
  set(flags_amx ${flags_avx512} -mamx-tile -mamx-int8 -mamx-bf16)
  if(NOT DEFINED flags_${isa})
    message(FATAL_ERROR "atelier_isa_sources: unknown isa ${isa}")
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags_${isa}}")
endfunction()
