"""Writes testdata/golden/trees.json: advantages in trees by the references' own functions.

    python scripts/fixtures_trees.py TREE-GRPO TREERL [testdata/golden/trees.json]

TREE-GRPO and TREERL are clones of github.com/AMAP-ML/Tree-GRPO (commit 90b1709) and
github.com/THUDM/TreeRL (commit f0edbea). The functions run unchanged, in float64, on 50 random
groups of trees:

    score       core_algos.compute_grpo_outcome_advantage over a prompt's answers, and over each tree's:
                the two summands of ray_trainer_ts.compute_advantage with adv_estimator tree
    state,      tree_node.build_into_tree_format without its norm over steps, and
    difference  parallel_mcts.path_from_root_to_node: of each node V(n) - V(root), and V(n) - V(parent),
                both times n/(n-1) for n answers, since rewards come less the mean of the others
"""

import ast
import collections
import contextlib
import importlib.util
import io
import json
import math
import pathlib
import random
import sys
from typing import Any, Dict, List

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def function(path, name, env):
    """The function of a file whose imports are not wanted."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            exec(compile(ast.Module([node], []), str(path), "exec"), env)
            return env[name]
    raise SystemExit(f"{path}: no function {name}")


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = m
    spec.loader.exec_module(m)
    return m


def forest():
    """Branches, own tokens and scores of a prompt's answers; each tree has at least two."""
    tree, parent, at, own = [], [], [], []
    for m in range(random.randint(1, 4)):
        first = len(tree)
        tree.append(m), parent.append(-1), at.append(0), own.append(random.randint(2, 9))
        for _ in range(random.randint(1, 5)):
            p = random.choice([s for s in range(first, len(tree)) if own[s] > 1] + [-1])
            tree.append(m), own.append(random.randint(1, 9))
            parent.append(first if p < 0 else p)
            at.append(0 if p < 0 else at[p] + random.randint(1, own[p] - 1))
    kind = random.choice(["real", "binary", "few"])
    score = [{"real": random.gauss(0, 3), "binary": random.randint(0, 1) * 1.,
              "few": random.randint(1, 4) / 4}[kind] for _ in tree]
    return tree, parent, at, own, score


def tree_grpo(f, tree, score):
    rewards = torch.tensor(score)[:, None]
    mask = torch.ones_like(rewards)
    every, _ = f(rewards.clone(), mask, [0] * len(score))
    within, _ = f(rewards.clone(), mask, tree)
    return within[:, 0].tolist(), every[:, 0].tolist()


def tree_rl(nodes, path_of, parent, at, own, score):
    made = []
    for s, n in enumerate(own):
        split = at[s] - (at[parent[s]] if parent[s] >= 0 else 0)
        node = nodes.TreeNode(0, s, lambda ids: "x", list(range(n)), [0.] * n,
                              finish_reason=str(s), parent_node_split_idx=split)
        node.score = score[s]
        made.append(node)
        if at[s] > 0:
            made[parent[s]].add_child(node, split)
    with contextlib.redirect_stdout(io.StringIO()):
        _, leaves = nodes.build_into_tree_format(
            [[made[s]] for s in range(len(own)) if at[s] == 0], lambda ids: "x", len(own),
            use_all_terminals=True, overall_norm_style="none")
    paths = [None] * len(own)
    for leaf in leaves:
        chain, n = [], leaf
        while n.parent is not None:
            chain.append(n)
            n = n.parent
        steps = path_of(leaf)
        paths[int(leaf.finish_reason)] = [
            {"answer": int(n.finish_reason), "tokens": len(n.answer_token),
             "leaves": n.terminal_in_subtree, "state": s["state_value"], "difference": s["value"]}
            for n, s in zip(reversed(chain), steps, strict=True)]
    return paths


def main(grpo, treerl, path="testdata/golden/trees.json"):
    random.seed(1)
    f = function(pathlib.Path(grpo) / "verl/trainer/ppo/core_algos.py",
                 "compute_grpo_outcome_advantage",
                 {"torch": torch, "defaultdict": collections.defaultdict})
    utils = pathlib.Path(treerl) / "openrlhf/trainer/ppo_utils"
    nodes = module(utils / "tree_node.py")
    path_of = function(utils / "parallel_mcts.py", "path_from_root_to_node",
                       {"MCTSNode": nodes.MCTSNode, "List": List, "Dict": Dict, "Any": Any,
                        "math": math})
    cases = []
    for _ in range(50):
        tree, parent, at, own, score = forest()
        within, every = tree_grpo(f, tree, score)
        cases.append({"tree": tree, "parent": parent, "at": at, "own": own, "score": score,
                      "within": within, "every": every,
                      "paths": tree_rl(nodes, path_of, parent, at, own, score)})
    text = {"torch": torch.__version__, "tree_grpo": "90b1709", "treerl": "f0edbea",
            "cases": cases}
    pathlib.Path(path).write_text(json.dumps(text) + "\n")
    print(len(cases), "cases")


main(*sys.argv[1:])
