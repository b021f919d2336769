#include "tools/atelier/command.h"

namespace atelier {

std::string TakeOperand(std::vector<const char*>& arguments) {
  if (arguments.size() < 2 || *arguments[1] == '-') return "";
  const std::string operand = arguments[1];
  arguments.erase(arguments.begin() + 1);
  return operand;
}

}  // namespace atelier
