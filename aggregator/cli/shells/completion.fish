function __sickbay_candidates
  set -l words (commandline -opc)
  set -l found (sickbay __complete $words[2..] (commandline -ct) 2>/dev/null)
  test "$found[-1]" = :0; and __fish_complete_path (commandline -ct)
  string match --invert ':*' -- $found
end
complete --command sickbay --no-files --arguments '(__sickbay_candidates)'
