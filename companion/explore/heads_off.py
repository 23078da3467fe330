"""What a trained Transformer says when some of its heads are off (chapter 6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from companion.explore.explorer import Explorer, plain_table

if TYPE_CHECKING:
    from companion.g2p.heads import Head
    from companion.g2p.transformer import TransformerG2P

MAX_WORDS = 8


def explore_heads_off(
    model: TransformerG2P,
    words: Sequence[str],
    *,
    groups: Mapping[str, Collection[Head]] | None = None,
) -> Explorer:
    """Show how a trained model pronounces a few words without one of its heads, or without several.

    All pronunciations are computed here and kept in the page: without each head alone, without all
    heads of each attention, and without each group that is named.

    Args:
        model: a trained model, best in float64, so that it says the same on every machine.
        words: up to 8 words to pronounce.
        groups: ``{name: heads}``, further heads to switch off together.

    Raises:
        TypeError, ValueError: no words or more than 8; a word that cannot be read; a model that is
            no ``TransformerG2P``; a head that it does not have; a group with the name of a head.

    Needs the extra ``g2p``. Source: Michel, Levy and Neubig 2019. Chapter: 6.
    """
    # Imported here: the other explorers need neither the dictionary nor trained models.
    from companion.g2p.evaluation import predict
    from companion.g2p.heads import all_heads, heads_off
    from companion.g2p.lexicon import check_words

    words = check_words(words)
    if len(words) > MAX_WORDS:
        raise ValueError(f"expected 1 to {MAX_WORDS} words, got {len(words)}")
    heads = all_heads(model)
    attentions: dict[tuple[str, int], list[Head]] = {}
    for head in heads:
        attentions.setdefault((head.kind, head.layer), []).append(head)

    groups = {} if groups is None else groups
    singles = [f"Without {head}" for head in heads]
    off: dict[str, list[Head]] = {"All heads on": []}
    off |= {f"Without {name}": list(group) for name, group in groups.items()}
    rows: list[tuple[str, int, list[str]]] = [("Heads off", 0, ["none", *groups])]
    for (kind, layer), alike in attentions.items():
        buttons = [f"{layer + 1}.{head.number + 1}" for head in alike] + ["all"]
        rows.append((f"{kind.capitalize()} {layer + 1}", len(off), buttons))
        off |= {f"Without {head}": [head] for head in alike}
        off[f"Without {kind} {layer + 1}, all heads"] = alike
    if len(off) != 1 + len(groups) + len(heads) + len(attentions):
        raise ValueError(f"groups need names that no head has, got {', '.join(groups)}")

    said: list[list[str]] = [[] for _ in words]
    chosen = {}
    for name, gone in off.items():
        with heads_off(model, gone):
            spoken = predict(model, words)
        texts = [" ".join(spoken[word]) or "(nothing)" for word in words]
        chosen[name] = [_index(known, text) for known, text in zip(said, texts, strict=True)]

    several = {name: chosen[name] for name in off if name not in singles}
    spelled = {
        name: [said[i][index] for i, index in enumerate(indices)]
        for name, indices in several.items()
    }
    lines = [f"Pronunciations of {', '.join(words)}"]
    lines += [f"{name}: {', '.join(spoken)}" for name, spoken in spelled.items()]
    changing = sum(any(chosen[name]) for name in singles)
    lines.append(f"Heads that change a word when off alone: {changing} of {len(singles)}")
    table = plain_table(
        "Pronunciations without some heads",
        ["heads", *words],
        [[name, *spoken] for name, spoken in spelled.items()],
    )
    data = {
        "words": words,
        "names": list(off),
        "rows": rows,
        "said": said,
        "off": list(chosen.values()),
    }
    title = "What does the model say without some of its heads?"
    return Explorer(title, "\n".join(lines), table, "heads_off.js", data)


def _index(known: list[str], text: str) -> int:
    if text not in known:
        known.append(text)
    return known.index(text)
