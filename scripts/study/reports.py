"""What the tables of this folder's scripts share: looking into the JSON that gad prints."""


def find(node, key):
    """Return the first value of a key in nested JSON, or None."""
    if isinstance(node, dict):
        if key in node:
            return node[key]
        node = list(node.values())
    if isinstance(node, list):
        for x in node:
            found = find(x, key)
            if found is not None:
                return found
    return None
