_sickbay() {
  local -a found
  mapfile -t found < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  local last=$((${#found[@]} - 1))
  if [[ $last -ge 0 && ${found[$last]} == :0 ]]; then compopt -o default 2>/dev/null; fi
  COMPREPLY=("${found[@]:0:$last}")
}
complete -F _sickbay sickbay
