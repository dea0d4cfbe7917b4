"""Files that Rust sources include at compile time."""

import posixpath
import re

_INCLUDE = re.compile(r'include_(?:str|bytes)!\(\s*"([^"]+)"\s*,?\s*\)')


def missing(sources: dict[str, str], present: set[str]) -> list[str]:
    """Included files that are not present. `sources` maps the paths of Rust files to their texts."""
    problems = []
    for path, text in sorted(sources.items()):
        # The generator writes the macro into other files.
        if "src/emit/" in path:
            continue
        # Comments and documentation may show the macro.
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
        for included in _INCLUDE.findall(code):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), included))
            if target not in present:
                problems.append(f"{path} includes {included}, which the package does not contain")
    return problems


assert missing({"a/src/lib.rs": 'include_str!("../x.yaml")'}, {"a/x.yaml"}) == []
assert missing({"a/src/lib.rs": 'include_str!("../../x.yaml")'}, {"a/x.yaml"}) != []
