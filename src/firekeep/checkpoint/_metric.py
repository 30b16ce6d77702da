"""The metric that tells the best step: whether its name says that more is better, and whether the steps have it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from firekeep.wording import quote, some

_MORE = frozenset(
    """
    acc accs accuracy accuracies f1 f1score auc auroc rocauc auprc aupr ap map bleu rouge rougel rougelsum meteor cider
    iou miou giou dice jaccard recall precision specificity sensitivity r2 reward rewards return returns score scores psnr ssim winrate
    wins ndcg mrr mcc kappa throughput correct
    """.split()  # noqa: SIM905 - easier to read
)
"""Words that say that more is better."""
_PAIRS = frozenset(("win rate", "success rate", "hit rate", "exact match", "pass rate"))
_LESS = frozenset(
    """
    loss losses error errors err errs cost regret gap perplexity ppl mse mae rmse nll neg negative minus distance divergence entropy
    latency time seconds brier fid kl wer cer inverse inv
    """.split()  # noqa: SIM905
)
"""Words that say the opposite, whatever stands beside them: `top5_error`, `dice_loss`."""
_WORD = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*")


def more_is_better(name: str) -> bool:
    """Say whether a metric's name plainly says that more of it is better."""
    words = {word.lower() for word in _WORD.findall(name)}
    words |= {word for part in name.split() for word in re.split(r"[^a-z0-9]+", part.lower())}
    words |= {word.rstrip("0123456789") for word in words}
    if words & _LESS or re.match(r"1\s*-", name):
        return False
    spaced = " ".join(re.findall(r"[a-z]+", name.lower()))
    counted = any(re.fullmatch("top[0-9]+", word) for word in words)
    return counted or bool(words & _MORE) or any(re.search(rf"\b{pair}\b", spaced) for pair in _PAIRS)


def unsaid(name: str) -> str:
    """Say why a name alone is not enough here."""
    return f"more of {quote(name)} is better, going by its name, and a name alone means that the least is the best"


def spelled(name: str) -> str:
    """Spell a `best=` that works."""
    text = json.dumps(name, ensure_ascii=False)
    return f'best=KeepBest({text}, mode="max")' if more_is_better(name) else f"best={text}"


def near_first(name: str, known: Iterable[str]) -> list[str]:
    """Sort names, those first that may have been meant."""
    import difflib

    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return [*near, *(other for other in names if other not in near)]


def lacks(name: str, known: Iterable[str]) -> str:
    """Say that a save has metrics, and not the one that tells the best step."""
    return f"it has no metric {quote(name)}, which tells the best step: there are {some(near_first(name, known))}"


def which_there_are(name: str, metrics: Sequence[Mapping[str, float]]) -> str | None:
    """Say how the best step is asked for by a metric that steps have; None where they have none."""
    known = near_first(name, (each for step in metrics for each in step))
    return f"The steps have the metrics {some(known)}: tell the best by {spelled(known[0])}." if known else None
