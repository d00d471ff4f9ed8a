#!/usr/bin/env python3
"""Build a small labelled 3D data set from the Debian package sweethome3d-furniture.

    python prepare.py --package sweethome3d-furniture_1.8-1_all.deb \
                      --candidates candidates.csv --out furniture

Reads the package (or, with --catalogs, a folder holding its .sh3f files), takes the
models named in the candidate table, welds, normalises, removes near-duplicates,
simplifies, splits into train/test and writes

    OUT/<class>/<name>.ply   binary little-endian PLY, float32 xyz + int32 triangles
    OUT/objects.csv          file, class, split, name, creator, licence, source, ...
    OUT/dropped.csv          candidates left out, with the reason

and, with --deckchair DIR, the textured CC0 object in ../scenes/deckchair (OBJ, MTL, PNG).

Everything is deterministic for a given --seed.
Needs numpy, scipy, meshoptimizer (0.2.30a0), and pillow for --deckchair.

The candidate table has the columns class, catalog, model, set, drop:
    set   objects of one furniture set (same design in several sizes) carry one set
          name and always land on the same side of the split; empty = none
    drop  reason for leaving the object out after looking at it; empty = keep
"""
import argparse, csv, html, io, lzma, os, re, tarfile, zipfile
import numpy as np

# ------------------------------------------------------------------ catalogs

CATALOGS = ("BlendSwap-CC-0", "BlendSwap-CC-BY", "KatorLegaz", "Scopia")


def read_deb(path):
    """{catalog name: bytes of the .sh3f zip} from a .deb (an ar archive)."""
    out = {}
    with open(path, "rb") as f:
        if f.read(8) != b"!<arch>\n":
            raise SystemExit(path + ": not a Debian package")
        while True:
            head = f.read(60)
            if len(head) < 60:
                break
            name, size = head[:16].decode().strip().rstrip("/"), int(head[48:58])
            body = f.read(size)
            f.read(size & 1)
            if not name.startswith("data.tar"):
                continue
            if name.endswith(".xz"):
                body = lzma.decompress(body)
            with tarfile.open(fileobj=io.BytesIO(body)) as tar:  # gz is detected
                for m in tar:
                    if m.name.endswith(".sh3f"):
                        key = os.path.basename(m.name)[:-5]
                        out[key] = tar.extractfile(m).read()
    return out


class Catalog:
    """One .sh3f file: a zip with OBJ models and a properties file listing them."""

    def __init__(self, blob):
        self.zip = zipfile.ZipFile(io.BytesIO(blob))
        self.names = self.zip.namelist()
        text = self.zip.read("PluginFurnitureCatalog.properties").decode("latin-1")
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m.group(1), 16)), text)
        prop = {}
        for line in text.splitlines():
            if "=" in line and not line.startswith("#"):
                k, v = line.split("=", 1)
                prop[k.strip()] = v.strip()
        self.entries = {}
        n = 1
        while "model#%d" % n in prop:
            e = {k: prop.get("%s#%d" % (k, n), "")
                 for k in ("name", "creator", "model", "modelRotation")}
            e["model"] = e["model"].lstrip("/")
            self.entries[os.path.basename(e["model"])[:-4]] = e
            n += 1

    def text(self, name):
        return self.zip.read(name).decode("latin-1")

    def licence_notice(self, model):
        """(title, author, url, licence as stated) of the model's own notice, or None."""
        folder = os.path.dirname(self.entries[model]["model"]) + "/"
        for name in sorted(self.names):
            if not name.startswith(folder) or not name.lower().endswith((".txt", ".html")):
                continue
            raw = self.zip.read(name).decode("utf-8", "replace")
            t = re.sub(r"<style.*?</style>", " ", raw, flags=re.S)
            t = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", t)))
            url = re.search(r"https?://(?:www\.)?blendswap\.com/blends/view/(\d+)", raw)
            lic = re.search(r"(?:Released under|following license:) (Creative Commons [A-Za-z]+)", t)
            lic = {"Creative Commons Zero": "CC0-1.0",
                   "Creative Commons Attribution": "CC-BY-3.0"}.get(lic and lic[1])
            title = author = None
            m = re.search(r'downloading "(.+?)" by (.+?) Released under', t)
            if m:
                title, author = m[1], re.split(r",? [mM]odified| texture replaced| Replaced", m[2])[0]
            else:
                m = re.search(r"^ ?(.+?) by (\S.*?) - \d+ - Creative Commons License", t)
                if m:
                    title, author = m[1], m[2]
                else:
                    m = re.search(r"^ ?\d+ ?- (.+?) - Downloaded from Blend Swap", t)
                    title = m and m[1]
            return title and title.strip(), author, url and url[0], lic
        return None


def provenance(catalog_name, catalog, model):
    """title, creator, licence, where the licence is stated, source address."""
    e = catalog.entries[model]
    if catalog_name == "KatorLegaz":
        return (e["name"], "Andrew Kator & Jennifer Legaz", "CC-BY-3.0-US", "catalog",
                "http://www.katorlegaz.com/3d_models/")
    if catalog_name == "Scopia":
        text = catalog.text("LICENSE.TXT")
        both = re.search(r"^- *%s\s*$" % re.escape(model), text, flags=re.M)
        who = "Scopia Visual Interfaces Systems, s.l."
        if both:
            who = "Emmanuel Puybaret / eTeks and " + who
        return e["name"], who, "CC-BY-3.0", "catalog", "http://www.scopia.es"
    default = "CC0-1.0" if catalog_name == "BlendSwap-CC-0" else "CC-BY-3.0"
    note = catalog.licence_notice(model)
    if note is None:
        return e["name"], e["creator"], default, "catalog", "http://www.blendswap.com"
    title, author, url, lic = note
    # the model's own notice outranks the catalog it was packed in
    return title or e["name"], e["creator"] if not author else author, lic or default, "model", url

# ------------------------------------------------------------------ OBJ files


def triangulate(P):
    """Triangles (index triples) of one planar polygon with corner positions P."""
    n = len(P)
    if n == 3:
        return [(0, 1, 2)]
    nrm = np.zeros(3)
    for i in range(n):
        nrm += np.cross(P[i], P[(i + 1) % n])
    length = np.linalg.norm(nrm)
    if length < 1e-14:
        return [(0, i, i + 1) for i in range(1, n - 1)]
    nrm /= length
    if n == 4:  # take the diagonal that keeps both triangles on the same side
        a = np.cross(P[1] - P[0], P[2] - P[0]) @ nrm
        b = np.cross(P[2] - P[0], P[3] - P[0]) @ nrm
        return [(0, 1, 2), (0, 2, 3)] if a > 0 and b > 0 else [(1, 2, 3), (1, 3, 0)]
    axis = np.eye(3)[np.argmin(abs(nrm))]
    u = np.cross(nrm, axis)
    u /= np.linalg.norm(u)
    Q = np.stack([P @ u, P @ np.cross(nrm, u)], 1)

    def cross(o, p, q):
        return (p[0] - o[0]) * (q[1] - o[1]) - (p[1] - o[1]) * (q[0] - o[0])

    left, out = list(range(n)), []  # ear clipping
    while len(left) > 3:
        for k in range(len(left)):
            i, j, m = left[k - 1], left[k], left[(k + 1) % len(left)]
            if cross(Q[i], Q[j], Q[m]) <= 1e-15:
                continue
            if any(cross(Q[i], Q[j], Q[w]) >= 0 and cross(Q[j], Q[m], Q[w]) >= 0
                   and cross(Q[m], Q[i], Q[w]) >= 0 for w in left if w not in (i, j, m)):
                continue
            out.append((i, j, m))
            left.pop(k)
            break
        else:  # self-intersecting polygon
            return out + [(left[0], left[q], left[q + 1]) for q in range(1, len(left) - 1)]
    return out + [tuple(left)]


def read_obj(text, rotation=""):
    """vertices, triangles, texture coordinates, triangles' uv indices, material of
    each triangle, material names, material library names"""
    V, T, polys, mats, libs, current = [], [], [], [], [], ""
    for line in text.splitlines():
        p = line.split()
        if not p:
            continue
        if p[0] == "v":
            V.append([float(x) for x in p[1:4]])
        elif p[0] == "vt":
            T.append([float(x) for x in p[1:3]])
        elif p[0] == "usemtl":
            current = " ".join(p[1:])
        elif p[0] == "mtllib":
            libs.append(" ".join(p[1:]))
        elif p[0] == "f" and len(p) > 3:
            corner = []
            for q in p[1:]:
                a = q.split("/")
                vi = int(a[0])
                ti = int(a[1]) if len(a) > 1 and a[1] else 0
                corner.append((vi - 1 if vi > 0 else len(V) + vi,
                               ti - 1 if ti > 0 else len(T) + ti if ti < 0 else -1))
            if current not in mats:
                mats.append(current)
            polys.append((mats.index(current), corner))
    V, T = np.array(V, float), np.array(T, float).reshape(-1, 2)
    if rotation:  # the catalog's 3x3 matrix that stands the model upright
        V = V @ np.array([float(x) for x in rotation.split()]).reshape(3, 3).T
    F, FT, FM = [], [], []
    for m, c in polys:
        idx = [x[0] for x in c]
        for t in triangulate(V[idx]):
            F.append([idx[k] for k in t])
            FT.append([c[k][1] for k in t])
            FM.append(m)
    return V, np.array(F), T, np.array(FT), np.array(FM), mats, libs


def read_mtl(text):
    out, cur = {}, None
    for line in text.splitlines():
        p = line.split()
        if not p:
            continue
        if p[0] == "newmtl":
            cur = out.setdefault(" ".join(p[1:]), {"Kd": (.8, .8, .8), "map": None})
        elif cur is not None and p[0] == "Kd":
            cur["Kd"] = tuple(float(x) for x in p[1:4])
        elif cur is not None and p[0] == "map_Kd":
            cur["map"] = " ".join(p[1:])
    return out

# ------------------------------------------------------------------ geometry


def compact(V, F):
    used, inv = np.unique(F, return_inverse=True)
    return V[used], inv.reshape(F.shape)


def weld(V, F, tol=1e-5):
    """Merge vertices closer than tol x the longest side; drop double triangles."""
    size = np.ptp(V[np.unique(F)], axis=0).max()
    _, first, inv = np.unique(np.round(V / (size * tol)).astype(np.int64), axis=0,
                              return_index=True, return_inverse=True)
    V, F = V[first], inv.reshape(-1)[F]
    F = F[(F[:, 0] != F[:, 1]) & (F[:, 1] != F[:, 2]) & (F[:, 2] != F[:, 0])]
    _, i = np.unique(np.sort(F, 1), axis=0, return_index=True)
    return compact(V, F[np.sort(i)])


def normalise(V):
    """Centre the bounding box on the origin; longest side = 1, so all in [-.5,.5]."""
    lo, hi = V.min(0), V.max(0)
    return (V - (lo + hi) / 2) / (hi - lo).max()


def sample_surface(V, F, n, rng):
    """n points spread evenly over the area of the triangles."""
    a = np.cross(V[F[:, 1]] - V[F[:, 0]], V[F[:, 2]] - V[F[:, 0]])
    a = np.cumsum(np.linalg.norm(a, axis=1))
    i = np.minimum(np.searchsorted(a, rng.random(n) * a[-1]), len(F) - 1)
    s, t = np.sqrt(rng.random((n, 1))), rng.random((n, 1))
    return V[F[i, 0]] * (1 - s) + V[F[i, 1]] * s * (1 - t) + V[F[i, 2]] * s * t


def components(F, n):
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components
    i, j = F[:, [0, 1, 2]].ravel(), F[:, [1, 2, 0]].ravel()
    return connected_components(coo_matrix((np.ones(len(i)), (i, j)), shape=(n, n)),
                                directed=False)[1][F[:, 0]]


def simplify(V, F, limit, rng):
    """Edge-collapse simplification bounded by the geometric error: the smallest bound
    of the ladder (in longest sides) that needs at most `limit` triangles. Returns the
    mesh and the measured deviation (99th percentile of the surface distance, both
    ways, less the sampling noise of the measure)."""
    import meshoptimizer
    from scipy.spatial import cKDTree
    pos = np.ascontiguousarray(V, np.float32)
    idx = np.ascontiguousarray(F.ravel(), np.uint32)
    for bound in (.002, .003, .004, .006, .008, .012, .018, .025):
        out = np.zeros_like(idx)
        n = meshoptimizer.simplify(out, idx, pos, target_index_count=3, target_error=bound)
        if n <= 3 * limit * {.002: .3, .003: .5}.get(bound, 1):  # fine bounds only where cheap
            break
    v, f = compact(V, out[:n].reshape(-1, 3).astype(int))
    tree, other = (cKDTree(sample_surface(*m, 60000, rng)) for m in ((V, F), (v, f)))
    probe = sample_surface(V, F, 5000, rng)
    noise = np.percentile(tree.query(probe)[0], 99)
    back = np.percentile(tree.query(sample_surface(v, f, 5000, rng))[0], 99)
    return v, f, max(0, np.percentile(other.query(probe)[0], 99) - noise, back - noise)


TURNS = [np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ np.diag([m, 1, 1])
         for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)) for m in (1, -1)]


class Shape:
    """Point clouds of one object, uniformly normalised and stretched to a box."""

    def __init__(self, V, F):
        from scipy.spatial import cKDTree
        p = sample_surface(V, F, 12000, np.random.default_rng(0))
        lo, size = p.min(0), np.maximum(np.ptp(p, axis=0), 1e-3)
        self.clouds = [(q[:600], cKDTree(q)) for q in (p, (p - lo) / size - .5)]

    def distance(self, other, enough):
        """Mean surface distance, the least over the 8 turns and mirrorings about the
        upright axis and over both normalisations (the second finds the same design
        made wider or taller)."""
        best = np.inf
        for (a, ta), (b, tb) in zip(self.clouds, other.clouds):
            for T in TURNS:
                if tb.query(a[:100] @ T.T)[0].mean() > 1.3 * min(best, enough):
                    continue
                best = min(best, max(tb.query(a @ T.T)[0].mean(), ta.query(b @ T)[0].mean()))
        return best


def write_ply(path, V, F, comment):
    head = "ply\nformat binary_little_endian 1.0\ncomment %s\n" % comment
    head += "element vertex %d\nproperty float x\nproperty float y\nproperty float z\n" % len(V)
    head += "element face %d\nproperty list uchar int vertex_indices\nend_header\n" % len(F)
    face = np.zeros(len(F), [("n", "u1"), ("i", "<i4", 3)])
    face["n"], face["i"] = 3, F
    with open(path, "wb") as f:
        f.write(head.encode("ascii", "replace") + V.astype("<f4").tobytes() + face.tobytes())

# ------------------------------------------------------------------ a textured object


def write_textured(folder, catalog, model, max_texture=512):
    from PIL import Image
    os.makedirs(folder, exist_ok=True)
    e = catalog.entries[model]
    base = os.path.dirname(e["model"]) + "/"
    V, F, T, FT, FM, names, libs = read_obj(catalog.text(e["model"]), e["modelRotation"])
    mats = {}
    for lib in libs:
        mats.update(read_mtl(catalog.text(base + lib)))
    V, F = compact(V, F)
    V = normalise(V)
    uv = T[np.maximum(FT, 0)] if len(T) else np.zeros((len(F), 3, 2))
    short = [re.sub(r"\W", "_", n) or "material" for n in names]
    with open(os.path.join(folder, "model.mtl"), "w") as f:
        for n, s in zip(names, short):
            m = mats.get(n, {"Kd": (.8, .8, .8), "map": None})
            f.write("newmtl %s\n" % s)
            if m["map"] and base + m["map"] in catalog.names:
                im = Image.open(io.BytesIO(catalog.zip.read(base + m["map"]))).convert("RGB")
                im.thumbnail((max_texture, max_texture))
                name = re.sub(r"\W", "_", os.path.splitext(m["map"])[0]) + ".png"
                im.save(os.path.join(folder, name), optimize=True)
                f.write("Kd 1 1 1\nmap_Kd %s\n" % name)
            else:
                f.write("Kd %g %g %g\n" % m["Kd"])
    with open(os.path.join(folder, "model.obj"), "w") as f:
        f.write("# %s, CC0, from sweethome3d-furniture; y up, unit cube\nmtllib model.mtl\n" % model)
        f.writelines("v %.5f %.5f %.5f\n" % tuple(v) for v in V)
        tu, ti = np.unique(np.round(uv.reshape(-1, 2), 5), axis=0, return_inverse=True)
        ti = ti.reshape(-1, 3)
        f.writelines("vt %.5f %.5f\n" % tuple(t) for t in tu)
        for i in range(len(names)):
            f.write("usemtl %s\n" % short[i])
            f.writelines("f %d/%d %d/%d %d/%d\n" % tuple(np.stack([a, b], 1).ravel() + 1)
                         for a, b in zip(F[FM == i], ti[FM == i]))
# ------------------------------------------------------------------ main


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    src = ap.add_mutually_exclusive_group(required=True)
    src.add_argument("--package", help="sweethome3d-furniture .deb file")
    src.add_argument("--catalogs", help="folder with the .sh3f files of that package")
    ap.add_argument("--candidates", required=True, help="table of candidate models")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--deckchair", help="folder for the textured object")
    ap.add_argument("--max-faces", type=int, default=3000)
    ap.add_argument("--duplicate", type=float, default=.0135,
                    help="objects of a class closer than this are duplicates: one is kept")
    ap.add_argument("--similar", type=float, default=.02,
                    help="objects of one creator closer than this share a side of the split")
    ap.add_argument("--test", type=float, default=.3, help="share of test objects")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()

    if a.package:
        blobs = read_deb(a.package)
    else:
        blobs = {c: open(os.path.join(a.catalogs, c + ".sh3f"), "rb").read() for c in CATALOGS}
    cats = {c: Catalog(blobs[c]) for c in CATALOGS}
    with open(a.candidates, newline="") as f:
        cand = list(csv.DictReader(f))
    classes = list(dict.fromkeys(c["class"] for c in cand))
    rows, dropped = [], []
    os.makedirs(a.out, exist_ok=True)

    for cl in classes:
        objs = []
        for c in [c for c in cand if c["class"] == cl]:
            if c["drop"]:
                dropped.append([cl, c["catalog"], c["model"], c["drop"]])
                continue
            cat = cats[c["catalog"]]
            e = cat.entries[c["model"]]
            V, F = read_obj(cat.text(e["model"]), e["modelRotation"])[:2]
            V, F = weld(V, F)
            V = normalise(V)
            o = dict(c, V=V, F=F, entry=e)
            o["title"], o["creator"], o["licence"], o["stated"], o["url"] = \
                provenance(c["catalog"], cat, c["model"])
            objs.append(o)
        # CC0 first, so that of two duplicates the freer one stays
        objs.sort(key=lambda o: (o["licence"] != "CC0-1.0", CATALOGS.index(o["catalog"])))

        # near-duplicates
        kept = []
        for o in objs:
            o["shape"] = Shape(o["V"], o["F"])
            o["near"] = [(o["shape"].distance(k["shape"], a.similar), k) for k in kept]
            d, k = min(o["near"], key=lambda x: x[0], default=(9, None))
            if d < a.duplicate:
                dropped.append([cl, o["catalog"], o["model"],
                                "duplicate of %s (distance %.4f)" % (k["model"], d)])
            else:
                kept.append(o)

        # groups that must not be torn apart by the split
        for i, o in enumerate(kept):
            o["group"] = i
        for o in kept:
            for d, k in o["near"]:
                if (o["set"] and o["set"] == k["set"]) or (d < a.similar and o["creator"] == k["creator"]):
                    old, new = o["group"], k["group"]
                    for q in kept:
                        if q["group"] == old:
                            q["group"] = new
        groups = {}
        for o in kept:
            groups.setdefault(o["group"], []).append(o)
        order = list(groups.values())
        np.random.default_rng([a.seed, classes.index(cl)]).shuffle(order)
        want, n = round(a.test * len(kept)), 0
        for g in order:  # groups that do not fit any more go to train
            test = n + len(g) <= want
            n += len(g) * test
            for o in g:
                o["split"] = "test" if test else "train"

        # write
        os.makedirs(os.path.join(a.out, cl), exist_ok=True)
        taken = set()
        for o in kept:
            stem = re.sub(r"[^a-z0-9]+", "_", o["model"].lower()).strip("_")
            name = next(n for n in [stem] + ["%s_v%d" % (stem, k) for k in range(2, 9)]
                        if n not in taken)
            taken.add(name)
            rng = np.random.default_rng(0)
            comp = components(o["F"], len(o["V"]))
            size = np.zeros(comp.max() + 1)  # specks (screws and the like) go first
            for ax in range(3):
                x = o["V"][o["F"]][:, :, ax]
                lo, hi = np.full(len(size), 9.), np.full(len(size), -9.)
                np.minimum.at(lo, comp, x.min(1))
                np.maximum.at(hi, comp, x.max(1))
                size = np.maximum(size, hi - lo)
            keep = size[comp] > .01
            V, F = compact(o["V"], o["F"][keep] if keep.sum() > .5 * len(keep) else o["F"])
            V, F, err = simplify(V, F, a.max_faces, rng)
            V, F = compact(normalise(V), F)
            path = "%s/%s.ply" % (cl, name)
            write_ply(os.path.join(a.out, path), V, F, comment="%s by %s, %s, modified"
                      % (o["title"], o["creator"], o["licence"]))
            rows.append([path, cl, o["split"], o["entry"]["name"], o["title"], o["creator"],
                         o["licence"], o["stated"], o["url"], o["catalog"], o["model"],
                         len(o["F"]), len(F), "%.4f" % err])
        print("%-9s %2d kept  %2d train %2d test" % (cl, len(kept), len(kept) - n, n), flush=True)

    with open(os.path.join(a.out, "objects.csv"), "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow("file,class,split,name,title,creator,licence,licence_stated_in,source,"
                   "catalog,model,faces_original,faces,error".split(","))
        w.writerows(rows)
    with open(os.path.join(a.out, "dropped.csv"), "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(["class", "catalog", "model", "reason"])
        w.writerows(dropped)
    if a.deckchair:
        write_textured(a.deckchair, cats["BlendSwap-CC-0"], "deckChair")


if __name__ == "__main__":
    main()
