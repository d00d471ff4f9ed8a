#!/usr/bin/env python3
"""Check and measure the furniture data set.

    python check.py stats     --data DIR          counts, faces, closed meshes
    python check.py voxels    --data DIR          does solid voxelisation work
    python check.py near      --data DIR          test objects' nearest training object
    python check.py baseline  --data DIR          nearest neighbour on shape descriptors
    python check.py pointnet  --data DIR          a small PointNet (needs torch)

Needs numpy and scipy otherwise. DIR holds objects.csv and the class folders.
"""
import argparse, csv, os
import numpy as np


def read_ply(path):
    """vertices (n,3) and triangles (m,3) of the binary PLY files of this data set"""
    with open(path, "rb") as f:
        n = m = 0
        while True:
            w = f.readline().decode().split()
            if w[:2] == ["element", "vertex"]:
                n = int(w[2])
            elif w[:2] == ["element", "face"]:
                m = int(w[2])
            elif w == ["end_header"]:
                break
        v = np.frombuffer(f.read(n * 12), "<f4").reshape(-1, 3)
        t = np.frombuffer(f.read(m * 13), np.dtype([("n", "u1"), ("i", "<i4", 3)]))
    return v.astype(float), t["i"].astype(int)


def load(data):
    with open(os.path.join(data, "objects.csv"), newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    for r in rows:
        r["V"], r["F"] = read_ply(os.path.join(data, r["file"]))
    return rows, list(dict.fromkeys(r["class"] for r in rows))


def sample_surface(V, F, n, rng):
    a = np.cross(V[F[:, 1]] - V[F[:, 0]], V[F[:, 2]] - V[F[:, 0]])
    a = np.cumsum(np.linalg.norm(a, axis=1))
    i = np.minimum(np.searchsorted(a, rng.random(n) * a[-1]), len(F) - 1)
    s, t = np.sqrt(rng.random((n, 1))), rng.random((n, 1))
    return V[F[i, 0]] * (1 - s) + V[F[i, 1]] * s * (1 - t) + V[F[i, 2]] * s * t

# ------------------------------------------------------------------ voxels


def voxelise(V, F, n, fill=True, margin=1):
    """Occupancy grid n^3 (x, y, z) of a mesh in [-.5,.5]^3.

    1. Surface voxels: every triangle is sampled on a lattice finer than half a voxel
       and the voxels hit are set. No assumption on the mesh, thin parts survive.
    2. Solid: the empty voxels that the grid's border cannot reach through face
       neighbours are inside. The floor the object stands on counts as closed, as many
       models have no underside. Works for open or intersecting shells as long as their
       other gaps are narrower than a voxel; where they are wider the object stays a shell.
    """
    from scipy.ndimage import label
    inner = n - 2 * margin
    P = (V[F] + .5) * inner + margin
    P = np.clip(P, margin + 1e-6, n - margin - 1e-6)
    grid = np.zeros((n, n, n), bool)
    edge = np.linalg.norm(P - np.roll(P, 1, axis=1), axis=2).max(1)
    steps = np.maximum(1, np.ceil(edge / .4)).astype(int)
    for k in np.unique(steps):
        i, j = [x.ravel() for x in np.meshgrid(np.arange(k + 1), np.arange(k + 1))]
        ok = i + j <= k
        b = np.stack([i[ok], j[ok], k - i[ok] - j[ok]], 1) / k
        for part in np.array_split(P[steps == k], max(1, (steps == k).sum() * len(b) // 2000000)):
            q = np.einsum("kb,fbd->fkd", b, part).reshape(-1, 3).astype(int)
            grid[tuple(q.T)] = True
    if fill:
        free = np.pad(~grid, 1, constant_values=True)
        floor = np.flatnonzero(grid.any((0, 2)))[0]  # lowest layer in use; +1 by the pad
        free[:, floor, :] = False
        lab, _ = label(free[:, floor + 1:, :])
        grid[:, floor:, :] |= (free[:, floor + 1:, :] & (lab != lab[0, -1, 0]))[1:-1, :-1, 1:-1]
    return grid


def inside_by_rays(V, F, n, margin=1):
    """Reference for closed meshes: winding number of the voxel centres, by signed
    crossings along each of the three axes, majority of three."""
    votes = np.zeros((n, n, n), int)
    inner = n - 2 * margin
    jit = np.array([.5 + 1.3e-4, .5 + 2.1e-4])  # off the lattice, to miss edges
    for ax in range(3):
        perm = [(ax + 1) % 3, (ax + 2) % 3, ax]
        hits = np.zeros((n, n, n + 1), int)
        for a, b, c in ((V[F] + .5) * inner + margin)[:, :, perm]:
            d = (b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])
            lo, hi = np.minimum(np.minimum(a, b), c)[:2], np.maximum(np.maximum(a, b), c)[:2]
            i0, j0 = np.maximum(0, np.ceil(lo - jit)).astype(int)
            i1, j1 = np.minimum(n - 1, np.floor(hi - jit)).astype(int)
            if i1 < i0 or j1 < j0 or abs(d) < 1e-12:
                continue
            i, j = np.meshgrid(np.arange(i0, i1 + 1), np.arange(j0, j1 + 1), indexing="ij")
            x, y = i + jit[0] - a[0], j + jit[1] - a[1]
            u = (x * (c[1] - a[1]) - (c[0] - a[0]) * y) / d
            v = ((b[0] - a[0]) * y - x * (b[1] - a[1])) / d
            ok = (u >= 0) & (v >= 0) & (u + v <= 1)
            z = a[2] + u * (b[2] - a[2]) + v * (c[2] - a[2])
            k = np.clip(np.ceil(z[ok] - .5), 0, n).astype(int)  # first centre above
            np.add.at(hits, (i[ok], j[ok], k), int(np.sign(d)))
        inside = np.cumsum(hits, 2)[:, :, :n] != 0
        votes += inside.transpose(np.argsort(perm))
    return votes >= 2


def closed(F):
    """watertight: every edge belongs to exactly two triangles, in opposite directions"""
    e = np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]])
    key = np.sort(e, 1)
    _, inv, cnt = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    sign = np.where(e[:, 0] < e[:, 1], 1, -1)
    return bool((cnt == 2).all() and (np.bincount(inv.reshape(-1), sign) == 0).all())

# ------------------------------------------------------------------ descriptors


def d2(P, rng, bins=32, pairs=30000):
    """D2 shape distribution: histogram of distances between random surface points,
    scaled by their mean"""
    i, j = rng.integers(len(P), size=(2, pairs))
    d = np.linalg.norm(P[i] - P[j], axis=1)
    return np.histogram(d / d.mean(), bins, (0, 3))[0] / pairs


def upright(P, rng):
    """D2 plus the upright axis: height histogram, distance from the upright axis,
    relative height, footprint ratio"""
    h, _ = np.histogram(P[:, 1] - P[:, 1].min(), 16, (0, 1))
    r, _ = np.histogram(np.linalg.norm(P[:, [0, 2]] - P[:, [0, 2]].mean(0), axis=1), 16, (0, .75))
    s = np.ptp(P, axis=0)
    w = np.sort(s[[0, 2]])
    return np.concatenate([d2(P, rng), h / len(P), r / len(P), [s[1] * .3, w[0] / w[1] * .3, w[1] * .3]])


def accuracy(name, pred, true, classes):
    pred, true = np.array(pred), np.array(true)
    per = [np.mean(pred[true == i] == i) for i in range(len(classes))]
    print("%-34s accuracy %.3f (%d of %d), mean over classes %.3f" %
          (name, np.mean(pred == true), (pred == true).sum(), len(true), np.mean(per)))
    return per

# ------------------------------------------------------------------ commands


def stats(rows, classes, a):
    print("%-10s %6s %6s %6s %10s %8s" % ("class", "train", "test", "cc0", "mean faces", "closed"))
    for c in classes + ["all"]:
        s = [r for r in rows if c in ("all", r["class"])]
        print("%-10s %6d %6d %6d %10.0f %8d" % (
            c, sum(r["split"] == "train" for r in s), sum(r["split"] == "test" for r in s),
            sum(r["licence"] == "CC0-1.0" for r in s), np.mean([len(r["F"]) for r in s]),
            sum(closed(r["F"]) for r in s)))
    f = [len(r["F"]) for r in rows]
    print("faces: median %d, largest %d; bytes %d" % (
        np.median(f), max(f), sum(os.path.getsize(os.path.join(a.data, r["file"])) for r in rows)))


def voxels(rows, classes, a):
    print("voxelisation at %d^3: share of voxels set (mean)" % a.size)
    ious = []
    for c in classes:
        s = [r for r in rows if r["class"] == c]
        surf, solid, gain = [], [], 0
        for r in s:
            A, B = (voxelise(r["V"], r["F"], a.size, fill) for fill in (False, True))
            surf.append(A.mean())
            solid.append(B.mean())
            gain += B.sum() > 1.05 * A.sum()
            if closed(r["F"]):
                I = inside_by_rays(r["V"], r["F"], a.size) | A
                ious.append(((I & B).sum() / (I | B).sum(), r["file"]))
        print("%-10s surface %.3f  surface+fill %.3f  filling adds > 5 %% in %d of %d" %
              (c, np.mean(surf), np.mean(solid), gain, len(s)))
    ious.sort()
    v = np.array([i for i, _ in ious])
    print("%d closed meshes: IoU of the fill with the winding number: mean %.3f, %d above .95, "
          "least %s" % (len(v), v.mean(), (v > .95).sum(), ", ".join("%.2f %s" % i for i in ious[:5])))


def near(rows, classes, a):
    from scipy.spatial import cKDTree
    rng = np.random.default_rng(0)
    for r in rows:
        r["P"] = sample_surface(r["V"], r["F"], 12000, rng)
        r["T"] = cKDTree(r["P"])
    out = []
    for r in rows:
        if r["split"] != "test":
            continue
        best = (9, None)
        for q in rows:
            if q["split"] == "train" and q["class"] == r["class"]:
                d = max(q["T"].query(r["P"][:600])[0].mean(), r["T"].query(q["P"][:600])[0].mean())
                best = min(best, (d, q["file"]))
        out.append((*best, r["file"]))
    out.sort()
    d = np.array([o[0] for o in out])
    print("distance of a test object to the nearest training object of its class "
          "(longest side = 1; sampling noise about .004)")
    print("least %.4f, lower quartile %.4f, median %.4f" % (d[0], np.percentile(d, 25), np.median(d)))
    for o in out[:8]:
        print("  %.4f  %s ~ %s" % (o[0], o[2], o[1]))


def baseline(rows, classes, a):
    true = [classes.index(r["class"]) for r in rows if r["split"] == "test"]
    ytr = np.array([classes.index(r["class"]) for r in rows if r["split"] == "train"])
    big = np.bincount(ytr).argmax()
    accuracy("always '%s'" % classes[big], [big] * len(true), true, classes)
    for name, fn in (("D2 histogram, 1-NN (L1)", d2), ("D2 + upright profile, 1-NN (L1)", upright)):
        acc = []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            X = [(r["split"], fn(sample_surface(r["V"], r["F"], 4096, rng), rng)) for r in rows]
            tr, te = (np.array([x for s, x in X if s == k]) for k in ("train", "test"))
            pred = [ytr[np.abs(tr - t).sum(1).argmin()] for t in te]
            acc.append(np.mean(np.array(pred) == true))
        per = accuracy(name + " (last of 5)", pred, true, classes)
        print("    over 5 samplings: %.3f (least %.3f, best %.3f)" % (np.mean(acc), min(acc), max(acc)))
        print("    " + "  ".join("%s %.2f" % x for x in zip(classes, per)))


def pointnet(rows, classes, a):
    import time, torch
    from torch import nn
    torch.set_num_threads(a.threads)
    n, dense = 512, 4096
    rng = np.random.default_rng(0)
    P = {s: torch.tensor(np.stack([sample_surface(r["V"], r["F"], dense, rng)
                                   for r in rows if r["split"] == s]), dtype=torch.float32)
         for s in ("train", "test")}
    Y = {s: torch.tensor([classes.index(r["class"]) for r in rows if r["split"] == s])
         for s in ("train", "test")}

    def batch(x, turn):
        """n random points of each object, turned about the upright axis if wanted"""
        b = len(x)
        x = torch.gather(x, 1, torch.randint(dense, (b, n, 1)).expand(-1, -1, 3)).clone()
        if turn == "any":
            t = torch.rand(b) * 2 * np.pi
        else:
            t = torch.zeros(b)
        c, s = torch.cos(t), torch.sin(t)
        x = torch.stack([x[..., 0] * c[:, None] + x[..., 2] * s[:, None], x[..., 1],
                         -x[..., 0] * s[:, None] + x[..., 2] * c[:, None]], -1)
        return x

    def augment(x):  # mirror, stretch, jitter
        mirror = torch.ones(len(x), 1, 3)
        mirror[:, :, 0] = torch.randint(2, (len(x), 1)) * 2 - 1
        x = x * mirror
        x = x * (.8 + .4 * torch.rand(len(x), 1, 3))
        return x + .01 * torch.randn_like(x)

    def unit(x):  # centre and scale to the unit ball, as PointNet examples do
        x = x - x.mean(1, keepdim=True)
        return x / x.norm(dim=2).amax(1)[:, None, None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            def mlp(*w):
                return nn.Sequential(*[m for i, o in zip(w, w[1:]) for m in
                                       (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())])
            self.local, self.wide = mlp(3, 64, 64), mlp(64, 128, 256)
            self.head = nn.Sequential(nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU(),
                                      nn.Dropout(.4), nn.Linear(128, len(classes)))

        def forward(self, x):
            return self.head(self.wide(self.local(x.transpose(1, 2))).amax(2))

    for turn in ("none", "any"):
        acc = []
        for seed in range(a.seeds):
            torch.manual_seed(seed)
            net, t0 = Net(), time.time()
            opt = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
            sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs)
            for ep in range(a.epochs):
                net.train()
                for i in torch.randperm(len(Y["train"])).split(32):
                    if len(i) < 2:
                        continue
                    x = unit(augment(batch(P["train"][i], turn)))
                    loss = nn.functional.cross_entropy(net(x), Y["train"][i], label_smoothing=.1)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                sched.step()
            net.eval()
            with torch.no_grad():
                logit = sum(net(unit(batch(P["test"], turn))).softmax(1) for _ in range(4))
            pred = logit.argmax(1)
            acc.append((pred == Y["test"]).float().mean().item())
            per = accuracy("PointNet, turns: %s, seed %d" % (turn, seed), pred.tolist(),
                           Y["test"].tolist(), classes)
            print("    " + "  ".join("%s %.2f" % x for x in zip(classes, per)) +
                  "  (%.0f s)" % (time.time() - t0), flush=True)
        print("turns %s: mean %.3f, least %.3f, best %.3f" % (turn, np.mean(acc), min(acc), max(acc)))


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("command", choices="stats voxels near baseline pointnet".split())
    ap.add_argument("--data", required=True)
    ap.add_argument("--size", type=int, default=32, help="voxels along a side")
    ap.add_argument("--epochs", type=int, default=120)
    ap.add_argument("--seeds", type=int, default=3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--classes", help="comma-separated classes to keep (default all)")
    a = ap.parse_args()
    rows, classes = load(a.data)
    if a.classes:
        classes = a.classes.split(",")
        rows = [r for r in rows if r["class"] in classes]
    globals()[a.command](rows, classes, a)
