#!/bin/sh
# What unet3d does with wrong command lines and files, and that a resumed training is the same.
#   unet3d_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --batch 2 --channels 2 --levels 2 --patch 8 --min-dice 0 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

scan=$data/itk-t1/scan.pt
labels=$data/itk-t1/labels.pt

case $what in
arguments)
  expect 0 'default 400' --help
  for option in --steps --batch --accumulate --patch --channels; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  expect 2 'it must be a number above 0' --lr 0
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 2 to 7' --levels 1
  expect 2 'a whole number from 0 to 100' --min-dice 101
  expect 2 'must be a multiple of 4' --levels 3 --patch 10
  expect 2 'at most 26 x 87 x 86' --patch 28
  for value in "$scan" ",$labels" "$scan," "$scan,$labels,$scan"; do
    expect 2 'it must be two files, SCAN,LABELS' --data "$value"
  done
  expect 2 '--data is empty' --data=
  ;;
files)
  echo junk >"$scratch/junk.pt"
  echo junk >"$scratch/junk.nii.gz"
  head -c 100000 "$scan" >"$scratch/half.pt"
  expect 0 'all checks passed' --data "$scan,$labels"
  refuse 'missing.pt: no such file' --data "$scratch/missing.pt,$labels"
  refuse 'missing.pt: no such file' --data "$scan,$scratch/missing.pt"
  refuse "junk.pt: isn't one tensor" --data "$scratch/junk.pt,$labels"
  refuse "half.pt: isn't one tensor" --data "$scratch/half.pt,$labels"
  refuse 'without the nifti C library\|is no NIfTI file' --data "$scratch/junk.nii.gz,$labels"
  refuse 'unknown kind of file' --data "$data/itk-t1/README.md,$labels"
  refuse 'classes are whole numbers from 0 to 31' --data "$scan,$scan"
  refuse 'no training state' --resume "$scan"
  refuse 'missing.pt: no such file' --resume "$scratch/missing.pt"
  refuse "can't write" --save "$scratch/missing/state.pt"
  refuse 'junk.pt' --out "$scratch/junk.pt"
  refuse 'junk.pt' --report "$scratch/junk.pt"
  expect 0 '^Category' --report "$scratch/report"
  for kind in plain all; do
    for file in report.txt report.json report.html timeline.csv snapshot.pickle trace.json; do
      if [ ! -s "$scratch/report/$kind/$file" ]; then
        echo "--report wrote no $kind/$file"
        failures=$((failures + 1))
      fi
    done
  done
  ;;
resume)
  # shellcheck disable=SC2086
  for how in '--checkpoint off' '--amp bf16' '--amp fp16 --accumulate 2'; do
    expect 0 'all checks passed' $how --steps 6 --out "$scratch/whole"
    expect 0 'all checks passed' $how --steps 3 --save "$scratch/state.pt"
    expect 0 'all checks passed' $how --steps 6 --resume "$scratch/state.pt" --out "$scratch/resumed"
    for picture in "$scratch"/whole/*; do
      cmp "$picture" "$scratch/resumed/${picture##*/}" || failures=$((failures + 1))
    done
  done
  expect 2 'this one has.*amp off' --steps 6 --resume "$scratch/state.pt"
  expect 0 'all checks passed' --steps 3 --checkpoint off --save "$scratch/state.pt"
  expect 0 'all checks passed' --steps 4 --checkpoint on --resume "$scratch/state.pt"
  expect 2 'at step 3 already' --steps 3 --resume "$scratch/state.pt"
  expect 2 'this one has channels 3' --channels 3 --steps 6 --resume "$scratch/state.pt"
  ;;
techniques)
  # checkpointing and scaled losses change no picture, in any precision
  for amp in off bf16; do
    expect 0 'all checks passed' --steps 4 --amp $amp --checkpoint off --out "$scratch/plain"
    expect 0 'all checks passed' --steps 4 --amp $amp --scale-losses --out "$scratch/all"
    for picture in "$scratch"/plain/*; do
      cmp "$picture" "$scratch/all/${picture##*/}" || failures=$((failures + 1))
    done
  done
  # a score that isn't reached, and a loss that isn't finite
  expect 1 'at least 1.000 wanted: FAILED' --min-dice 100
  too_fast='--amp fp16 --lr 10 --channels 8 --steps 60'
  # shellcheck disable=SC2086
  expect 1 'no longer finite at step [0-9]*; try' $too_fast
  # shellcheck disable=SC2086
  expect 1 "first appeared in .* in module '" $too_fast --watch
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
