"""Writes testdata/golden/judge.json: length-controlled win rates by scikit-learn and statsmodels.

    python scripts/fixtures_judge.py [testdata/golden/judge.json]

Each case has lengths of two answers to a prompt, a preference from 0 to 1 in quarters and a
weight. The length term is tanh((length - against) / standard deviation), as in AlpacaEval 2.
scikit-learn fits with the ridge of its default (C = 1) on the slope, statsmodels without one.
A preference of 3/4 is three quarters of a won row and a quarter of a lost one.
"""

import json
import pathlib
import sys
from importlib.metadata import version

import numpy as np
import statsmodels.api as sm
from sklearn.linear_model import LogisticRegression

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/judge.json")
rng = np.random.default_rng(1)


def case(name, n, slope, intercept, levels, weighted=False):
    length = rng.integers(20, 900, n).astype(float)
    against = rng.integers(20, 700, n).astype(float)
    d = length - against
    z = np.tanh(d / d.std(ddof=1))
    p = 1 / (1 + np.exp(-(intercept + slope * z)))
    y = rng.binomial(levels, p) / levels
    w = rng.integers(0, 4, n).astype(float) if weighted else np.ones(n)
    rows_z = np.concatenate([z, z])[:, None]
    rows_y = np.concatenate([np.ones(n), np.zeros(n)])
    rows_w = np.concatenate([w * y, w * (1 - y)])
    keep = rows_w > 0
    fit = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    fit.fit(rows_z[keep], rows_y[keep], sample_weight=rows_w[keep])
    a, b = float(fit.intercept_[0]), float(fit.coef_[0, 0])
    plain = sm.GLM(y, sm.add_constant(z), family=sm.families.Binomial(), freq_weights=w).fit(tol=1e-14, maxiter=200)
    a0, b0 = map(float, plain.params)
    return {
        "name": name, "length": length.tolist(), "against": against.tolist(), "y": y.tolist(), "w": w.tolist(),
        "raw": float((w * y).sum() / w.sum()),
        "ridge": {"rate": 1 / (1 + np.exp(-a)), "slope": b},
        "plain": {"rate": 1 / (1 + np.exp(-a0)), "slope": b0},
    }


cases = [
    case("the longer answer wins more often", 200, 2.0, 0.0, 4),
    case("the shorter answer wins more often", 80, -1.5, 0.5, 4),
    case("a weak student", 150, 0.5, -2.5, 4),
    case("wins and losses only, few prompts", 12, 1.0, 0.2, 1),
    case("weights, as a bootstrap draws them", 60, 1.0, -0.5, 4, weighted=True),
]
about = {"made_by": "scripts/fixtures_judge.py", "scikit-learn": version("scikit-learn"), "statsmodels": version("statsmodels"), "numpy": version("numpy")}
out.write_text(json.dumps(about)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
