"""The paper's Figure 1.

De Roos & Hennig (2019) train on SARCOS with 253 features and a condition number of 1e5, at four batch sizes. The rows come
from `infhess reproduce regression`, which computes them on the real data (`infhess data get sarcos`); this script only draws
them. Learning rates of sgd and of the paper's method are the best of a grid; infhess has none.

Figure: Four panels, batch 32 to 256: gap against data points; the paper's method falls far below sgd, infhess below
both.
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = "sarcos-map/held-out"
METHODS = {
    "sgd, tuned": ("sgd, best learning rate", "#8a8a8a"),
    "paper, rate tuned": ("the paper's method, best learning rate", "#a8458c"),
    "infhess, online": ("infhess, no learning rate", "#1f6fb2"),
}

with open(ROOT / "benchmarks" / "results" / "paper-regression" / "rows.csv", encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["problem"] == PROBLEM]
ends = {row["method"]: float(row["loss"]) for row in rows if row["method"] in ("exact solution", "start")}
runs = defaultdict(list)
for row in rows:
    gap = (float(row["loss"]) - ends["exact solution"]) / (ends["start"] - ends["exact solution"])
    runs[row["method"], int(row["batch_size"]), int(row["seed"])].append((int(row["data_points"]), gap))

fig, axes = plt.subplots(1, 4, figsize=(10, 3), sharey=True)
for ax, batch in zip(axes, (32, 64, 128, 256)):
    for method, (label, colour) in METHODS.items():
        seeds = [curve for (m, b, _), curve in runs.items() if (m, b) == (method, batch)]
        for i, curve in enumerate(seeds):
            ax.plot(*zip(*curve), color=colour, linewidth=1.2, alpha=0.9, label=None if i else label)
        print(f"batch {batch:3d}, {label}: gap {median(curve[-1][1] for curve in seeds):.1e}")
    ax.set(xscale="log", yscale="log", xlabel="data points read", title=f"batch {batch}", ylim=(1e-5, 3))
axes[0].set_ylabel("gap to the optimum")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
fig.savefig("figure.svg")
