#!/bin/sh
# What pointnet2 does with wrong command lines and files, and that a resumed training is the same.
#   pointnet2_test.sh arguments|files|resume|techniques PROGRAM DATA_DIR
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--quick --steps 1 --classes chair,plant --batch 4 --points 128 --channels 8 --neighbours 8"
small="$small --min-score 0 --out $scratch/out"

. "$(dirname "$0")/program_test.sh"

# write_objects DIR: two classes of four objects, as OFF and as ASCII PLY
write_objects() {
  mkdir -p "$1/roof" "$1/sheet"
  for i in 1 2 3 4; do
    printf 'OFF\n4 4 0\n0 0 0\n%s 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n' $i \
      >"$1/roof/$i.off"
    {
      printf 'ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\n'
      printf 'property float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n'
      printf '0 0 0\n%s 0 0\n%s 0 1\n0 0 1\n4 0 1 2 3\n' $i $i
    } >"$1/sheet/$i.ply"
  done
}

case $what in
arguments)
  expect 0 'default 600' --help
  for option in --steps --accumulate; do
    expect 2 "$option is '0'; it must be a whole number from" "$option=0"
  done
  expect 2 'it must be classify or segment' --task paint
  expect 2 'a whole number from 2 to' --batch 1
  expect 2 'a whole number from 8 to' --channels 7
  expect 2 'it must be a multiple of 16' --points 120
  expect 2 'it must be a multiple of 128' --task segment --points 320
  expect 2 'it must be a number above 0' --lr 0
  expect 2 'it must be a number above 0' --radius -1
  expect 2 'it must be on or off' --checkpoint maybe
  expect 2 'it must be off, bf16 or fp16' --amp fp8
  expect 2 'it must be cpu or cuda' --device tpu
  expect 2 'a whole number from 0 to 100' --min-score 101
  expect 2 'a whole number from 0 to 180' --turn 181
  expect 2 'empty or there twice' --classes chair,,plant
  expect 2 'empty or there twice' --classes chair,chair
  expect 2 '--data is empty' --data=
  ;;
files)
  refuse "no class 'unicorn'" --classes unicorn
  refuse 'no such folder' --data "$scratch/missing"
  refuse 'no such folder' --data "$data/furniture/objects.csv"
  mkdir "$scratch/empty"
  refuse 'has no objects' --data "$scratch/empty"
  write_objects "$scratch/own"
  expect 0 'all checks passed' --data "$scratch/own" --classes all
  expect 0 'all checks passed' --data "$scratch/own" --classes all --task segment
  roof=$scratch/own/roof/2.off
  sheet=$scratch/own/sheet/2.ply
  # damage FILE PATTERN: refused with that in the line; the file as it was afterwards
  damage() {
    refuse "$2" --data "$scratch/own" --classes all
    write_objects "$scratch/own"
  }
  echo junk >"$roof" && damage "$roof" '2.off'
  : >"$roof" && damage "$roof" '2.off'
  head -n 6 "$sheet" >"$scratch/half" && mv "$scratch/half" "$sheet" && damage "$sheet" '2.ply'
  head -n 11 "$sheet" >"$scratch/half" && mv "$scratch/half" "$sheet" && damage "$sheet" '2.ply'
  echo junk >"$sheet" && damage "$sheet" '2.ply'
  printf 'OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n' >"$roof" && damage "$roof" '2.off'
  printf 'OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n' >"$roof" && damage "$roof" 'has no surface'
  printf 'OFF\n3 1 0\n0 0 0\n1 nan 0\n2 0 0\n3 0 1 2\n' >"$roof" && damage "$roof" '2.off'
  rm "$roof" && damage "$roof" 'it needs both'
  # a binary file of the furniture, cut off
  mkdir -p "$scratch/cut"
  cp -r "$data/furniture/chair" "$data/furniture/plant" "$scratch/cut"
  head -c 5000 "$data/furniture/chair/oakchair.ply" >"$scratch/cut/chair/oakchair.ply"
  refuse 'oakchair.ply' --data "$scratch/cut"
  # a table of objects that names what isn't there
  printf 'file,class,split\nroof/1.off,roof,train\nroof/9.off,roof,test\n' \
    >"$scratch/own/objects.csv"
  refuse '9.off' --data "$scratch/own" --classes all
  printf 'file,class,split\nroof/1.off,roof,somewhere\n' >"$scratch/own/objects.csv"
  refuse 'objects.csv:2: the split' --data "$scratch/own" --classes all

  refuse 'no training state' --resume "$data/furniture/objects.csv"
  refuse 'missing.pt: no such file' --resume "$scratch/missing.pt"
  refuse "can't write" --save "$scratch/missing/state.pt"
  echo junk >"$scratch/junk.pt"
  refuse 'no training state' --resume "$scratch/junk.pt"
  refuse 'junk.pt' --out "$scratch/junk.pt"
  refuse 'junk.pt' --report "$scratch/junk.pt"
  expect 0 'ball_query' --report "$scratch/report"
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
  for how in '--checkpoint off' '--amp bf16 --task segment' '--amp fp16 --accumulate 2'; do
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
  expect 2 'this one has.*channels 16' --channels 16 --steps 6 --resume "$scratch/state.pt"
  expect 2 'this one has task segment' --task segment --steps 6 --resume "$scratch/state.pt"
  ;;
techniques)
  # checkpointing and scaled losses change no picture, in any precision
  for task in classify segment; do
    for amp in off bf16; do
      expect 0 'all checks passed' --task $task --steps 4 --amp $amp --checkpoint off \
        --out "$scratch/plain"
      expect 0 'all checks passed' --task $task --steps 4 --amp $amp --scale-losses \
        --out "$scratch/all"
      for picture in "$scratch"/plain/*; do
        cmp "$picture" "$scratch/all/${picture##*/}" || failures=$((failures + 1))
      done
    done
  done
  # a score that isn't reached, and a loss that isn't finite
  expect 1 'at least 1.000 wanted: FAILED' --min-score 100 --classes all
  expect 1 'no longer finite at step [0-9]*; try' --amp fp16 --lr 10 --steps 200
  ;;
*)
  echo "unknown test '$what'"
  exit 1
  ;;
esac

[ "$failures" = 0 ]
