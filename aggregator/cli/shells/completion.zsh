#compdef sickbay
_sickbay() {
  local -a found
  found=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  local directive=${found[-1]}
  found[-1]=()
  (( ${#found} )) && compadd -a found
  [[ $directive == :0 ]] && _files
}
if [[ ${funcstack[1]} == _sickbay ]]; then
  _sickbay
elif (( $+functions[compdef] )); then
  compdef _sickbay sickbay
fi
