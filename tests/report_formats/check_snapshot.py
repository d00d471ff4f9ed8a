#!/usr/bin/env python3
"""Checks a snapshot as to_snapshot() makes it: check_snapshot.py FILE [EXPECTED_PEAK]

- it is a pickle of protocol 2 with opcodes that torch/utils/viz/MemoryViz.js reads;
- events and segments fit together: what is freed was allocated, what is left is in a segment, the
  sizes of the blocks of a segment add up;
- the most that is live at one time is EXPECTED_PEAK bytes;
- torch.cuda._memory_viz can use it, if torch can be imported.

Says what is wrong and exits with 1; else prints what it saw.
"""

import pickle
import pickletools
import sys

VIEWER_OPCODES = {
    "PROTO", "FRAME", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
    "SHORT_BINUNICODE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "NONE", "BINFLOAT", "LIST", "DICT", "STOP",
}  # fmt: skip
LARGEST_EXACT = 2**53


def check(truth, message):
    if not truth:
        sys.exit(f"check_snapshot: {message}")


def check_opcodes(data):
    used = set()
    for opcode, argument, _ in pickletools.genops(data):
        used.add(opcode.name)
        if opcode.name == "PROTO":
            check(argument == 2, f"protocol {argument} instead of 2")
    check(used <= VIEWER_OPCODES, f"opcodes the viewer can't read: {used - VIEWER_OPCODES}")


def check_frames(frames):
    for frame in frames:
        check({"filename", "line", "name"} <= frame.keys(), f"frame {frame}")


def check_trace(trace):
    """The most bytes live at one time, and the blocks that are left: address -> size."""
    live, most, total, time = {}, 0, 0, 0
    categories = {event["category"] for event in trace}
    check("unknown" in categories, "the viewer needs a category 'unknown'")
    for event in trace:
        address, size = event["addr"], event["size"]
        check(event["time_us"] >= time, f"time goes back: {event}")
        time = event["time_us"]
        check_frames(event["frames"])
        check(0 <= address <= LARGEST_EXACT, f"the viewer can't hold the address {address}")
        if event["action"] == "alloc":
            check(address not in live, f"allocated twice: {event}")
            live[address] = size
            total += size
            most = max(most, total)
        elif event["action"] == "free_requested":
            check(live.get(address) == size, f"freed, but not allocated: {event}")
        elif event["action"] == "free_completed":
            total -= live.pop(address)
        else:
            check(event["action"] == "snapshot", f"unknown action: {event}")
    return most, live


def check_segments(segments, device, live):
    left = dict(live)
    for segment in segments:
        check(segment["device"] == device, f"segment of device {segment['device']}")
        address = segment["address"]
        for block in segment["blocks"]:
            check(block["address"] == address, f"gap before {block}")
            check_frames(block["frames"])
            if block["state"] == "active_allocated":
                check(left.pop(address, None) == block["size"], f"not left by the trace: {block}")
            address += block["size"]
        check(address == segment["address"] + segment["total_size"], "sizes don't add up")
    check(not left, f"left by the trace, but in no segment: {left}")


def check_torch(file):
    """The functions behind `python -m torch.cuda._memory_viz`; without flamegraph.pl, a download."""
    try:
        from torch.cuda import _memory_viz
    except ImportError:
        return "torch can't be imported"

    def load():
        with open(file, "rb") as stream:
            return pickle.load(stream)

    lines = _memory_viz.segments(load(), format_flamegraph=lambda text: text)
    lines += _memory_viz.memory(load(), format_flamegraph=lambda text: text)
    check(lines.count("\n") >= 2 * len(load()["segments"]), "flame graph without blocks")
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        check("snapshot.pickle" in plot(load()), f"{plot.__name__} made no page")
    check("snapshot.pickle" in _memory_viz.trace_plot(load(), filter_freed=True), "filter_freed")
    check("total_allocated" in _memory_viz.segsum(load()), "segsum")
    check("entries" in _memory_viz.trace(load()), "trace")
    return "torch.cuda._memory_viz works"


def main():
    file = sys.argv[1]
    with open(file, "rb") as stream:
        data = stream.read()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    traces = [i for i, trace in enumerate(snapshot["device_traces"]) if trace]
    check(len(traces) == 1, f"events of {len(traces)} devices")
    device = traces[0]
    trace = snapshot["device_traces"][device]
    most, live = check_trace(trace)
    check_segments(snapshot["segments"], device, live)
    stated = snapshot["tidemark"]["events"]
    check(stated == len(trace) - 1, f"{stated} events stated, {len(trace) - 1} there")
    if len(sys.argv) > 2:
        check(most == int(sys.argv[2]), f"peak {most} instead of {sys.argv[2]}")
    print(f"{len(trace)} events, {len(snapshot['segments'])} segments, peak {most}: good;",
          check_torch(file))  # fmt: skip


if __name__ == "__main__":
    main()
