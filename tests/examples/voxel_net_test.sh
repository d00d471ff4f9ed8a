#!/bin/sh
# What the demo does with wrong command lines and files, and that a resumed training is the same.
#   voxel_net_test.sh arguments|files|resume|terminal PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --blocks 1 --channels 2 --patch 8 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

scan=$data/itk-t1/scan.pt
labels=$data/itk-t1/labels.pt

case $what in
arguments)
  expect 0 'default 150' --help
  for value in 0 -3 12x x 1.5 '' 99999999999999999999; do
    expect 2 "--steps is '$value'; it must be a whole number from" "--steps=$value"
  done
  for option in --batch --accumulate --patch --channels --blocks --segments --every; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  for value in 0 -1 nan 0x1 1e 1e999; do
    expect 2 "it must be a number above 0" "--lr=$value"
  done
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 "unknown.*'--stepz'" --stepz 3
  expect 2 "unknown.*'-q'" -q
  expect 2 "unknown.*'--quick=1'" --quick=1
  expect 2 '--lr needs a value' --lr
  expect 2 "unexpected argument 'more'" more
  expect 2 '--out is empty' --out=
  expect 2 'give either --segments or --every' --segments 1 --every 1
  expect 2 'more than the 1 blocks' --segments 2
  expect 2 'go together' --volume "$scan"
  expect 2 'at most 26 x 87 x 86' --patch 27
  ;;
files)
  echo junk >"$scratch/junk.pt"
  echo junk >"$scratch/junk.nii.gz"
  expect 0 'all checks passed' --volume "$scan" --labels "$labels"
  expect 1 'missing.pt: no such file' --volume "$scratch/missing.pt" --labels "$labels"
  expect 1 "junk.pt: isn't one tensor" --volume "$scratch/junk.pt" --labels "$labels"
  expect 1 'without the nifti C library\|is no NIfTI file' \
    --volume "$scratch/junk.nii.gz" --labels "$labels"
  expect 0 'all checks passed' --save "$scratch/state.pt"
  expect 1 "state.pt: isn't one tensor" --volume "$scratch/state.pt" --labels "$labels"
  expect 1 'classes are whole numbers from 0 to 31' --volume "$scan" --labels "$scan"
  expect 1 'no training state' --resume "$scan"
  expect 1 'missing.pt: no such file' --resume "$scratch/missing.pt"
  expect 1 "can't write" --save "$scratch/missing/state.pt"
  expect 1 'junk.pt' --out "$scratch/junk.pt"
  expect 1 'junk.pt' --report "$scratch/junk.pt"
  expect 0 '^Category' --report "$scratch/report"
  for kind in plain checkpointed; do
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
  for how in '--amp off' '--amp bf16' '--amp fp16 --accumulate 2'; do
    expect 0 'all checks passed' $how --steps 6 --out "$scratch/whole"
    expect 0 'all checks passed' $how --steps 3 --save "$scratch/state.pt"
    expect 0 'all checks passed' $how --steps 6 --resume "$scratch/state.pt" --out "$scratch/resumed"
    for picture in slices.png loss.svg; do
      cmp "$scratch/whole/$picture" "$scratch/resumed/$picture" || failures=$((failures + 1))
    done
  done
  expect 2 'this one has.*amp off' --steps 6 --resume "$scratch/state.pt"
  expect 0 'all checks passed' --steps 3 --save "$scratch/state.pt"
  expect 2 'at step 3 already' --steps 3 --resume "$scratch/state.pt"
  expect 2 'this one has.*accumulate 2' --accumulate 2 --steps 6 --resume "$scratch/state.pt"
  expect 2 'this one has channels 3' --channels 3 --steps 6 --resume "$scratch/state.pt"
  ;;
terminal)
  command -v script >/dev/null || { echo 'skipped: no script(1) to make a terminal'; exit 77; }
  TERM=xterm script -q -c "'$program' $small" /dev/null >"$scratch/log" </dev/null
  if ! tr '\r' '\n' <"$scratch/log" | grep -q 'step \[#*\.*\] 1/1'; then
    echo 'no progress bar on a terminal:'
    cat -v "$scratch/log"
    failures=1
  fi
  expect 0 '^  step 1/1  loss'
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
