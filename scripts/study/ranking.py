"""What the rank correlations of this folder's scripts share."""


def ranks(values):
    """Return centred ranks; equal values share their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            out[order[k]] = (i + j - len(order) + 1) / 2
        i = j + 1
    return out


def correlation(a, b):
    """Return the correlation of two centred lists, or None if one does not vary."""
    norm = (sum(x * x for x in a) * sum(x * x for x in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b)) / norm if norm > 0 else None
