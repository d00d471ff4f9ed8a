# shellcheck shell=sh
# What the tests of the examples share; to be read by them after $small, the options that make a run
# short, is set. The arguments are theirs: WHAT PROGRAM DATA_DIR.
# shellcheck disable=SC2034,SC2154
what=$1
program=$2
data=$3
name=${program##*/}
failures=0

# expect STATUS PATTERN ARGUMENT...: the exit status, and a line of what is printed
expect() {
  status=$1
  pattern=$2
  shift 2
  # shellcheck disable=SC2086
  "$program" $small "$@" >"$scratch/log" 2>&1
  got=$?
  if [ "$got" != "$status" ] || ! grep -q -e "$pattern" "$scratch/log"; then
    echo "$name $*"
    echo "  exit status $got, expected $status; expected in the output: $pattern"
    sed 's/^/  | /' "$scratch/log"
    failures=$((failures + 1))
  fi
}

# The same for what must be refused: in one line, and with nothing trained before.
refuse() {
  expect 1 "$@"
  if [ "$(wc -l <"$scratch/log")" != 1 ]; then
    echo "$name $*: not one line"
    sed 's/^/  | /' "$scratch/log"
    failures=$((failures + 1))
  fi
}
