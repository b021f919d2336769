# Sourced by scripts/demo, scripts/test and .ci/run: installing what is missing, building, Python environments.
# Everything made lives under build/ and .venv/ of the repository; packages come from Debian's and PyPI's registries only.

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly REPO

say() { printf '\n==> %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# timed "what" command…: says what is being done and how long it took; a failing command ends the script with its reason.
timed() {
  local what=$1 start=$SECONDS
  shift
  say "$what"
  "$@" || fail "$what failed (exit status $?)"
  printf '    %s: %d s\n' "$what" $((SECONDS - start))
}

# quietly "what" LOG command…: the same without its output, which goes to LOG; a failing command shows the end of that.
quietly() {
  local what=$1 log=$2
  shift 2
  mkdir -p "$(dirname "$log")"
  ("$@") >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    fail "$what failed (log: $log)"
  }
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root: run it as root, or install sudo, or do this yourself and start again: $*"
  fi
}

missing_packages() {
  local package
  sed 's/#.*//' "$REPO/scripts/packages.txt" | while read -r package; do
    [ -z "$package" ] || dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

install_packages() {
  command -v apt-get >/dev/null ||
    fail "this script installs packages with apt-get (made for Debian 12); elsewhere install what scripts/packages.txt names, then: cmake --preset release && cmake --build --preset release"
  local missing
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -gt 0 ] || return 0
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root apt-get update -qq || fail "apt-get update failed: no network to a Debian mirror?"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install the packages above"
}

# make_venv NAME REQUIREMENTS_FILE [pip options…]: .venv/NAME with exactly those versions; made again when the file changes.
make_venv() {
  local name=$1 requirements=$2 venv="$REPO/.venv/$1" stamp
  shift 2
  stamp="$(sha256sum <"$requirements") $* $(python3 --version)"
  if [ -f "$venv/stamp" ] && [ "$(cat "$venv/stamp")" = "$stamp" ]; then return 0; fi
  say "python environment .venv/$name from ${requirements#"$REPO"/}"
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 -m venv $venv failed"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" -r "$requirements" ||
    fail "pip could not install $requirements"
  printf '%s' "$stamp" >"$venv/stamp"
}

# configure_and_build PRESET [targets…]
configure_and_build() {
  local preset=$1 log="$REPO/build/configure-$1.log"
  shift
  mkdir -p "$REPO/build"
  (cd "$REPO" && cmake --preset "$preset" >"$log" 2>&1) || {
    cat "$log"
    fail "configuring the $preset preset failed (log: $log)"
  }
  (cd "$REPO" && cmake --build --preset "$preset" ${1:+--target "$@"}) || fail "building the $preset preset failed"
}

# Compiles go through ccache where it is installed, so that a second run, or a clone in another folder, takes seconds.
use_ccache() {
  command -v ccache >/dev/null || return 0
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
  export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
  export CCACHE_BASEDIR=$REPO CCACHE_NOHASHDIR=1
}

# The demo model of the README, in build/demo-model (see tools/demo_model/README.md); at once when it is there already.
make_demo_model() {
  make_venv demo-model "$REPO/tools/demo_model/requirements.txt" --no-deps
  "$REPO/.venv/demo-model/bin/python" "$REPO/tools/demo_model" --output "$REPO/build/demo-model" ||
    fail "making the demo model failed"
}

# What tests run beside our own binaries: pytest, two versions of the gateway, public quantisers.
make_test_venvs() {
  make_venv gateway "$REPO/tools/requirements/gateway.txt"
  make_venv gateway-floor "$REPO/tools/requirements/gateway-floor.txt"
  make_venv e2e "$REPO/tests/e2e/requirements.txt"
  make_venv quantiser "$REPO/tools/requirements/quantiser.txt" --no-deps --only-binary=:all:
}
