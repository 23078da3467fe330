"""Grapheme-to-phoneme conversion: pronouncing English words, the book's running example.

Needs the extra ``g2p``: ``pip install 'attention-companion[g2p]'``.
"""

from companion.g2p.decoding import beam_search
from companion.g2p.evaluation import evaluate, predict
from companion.g2p.lexicon import encode_words, load_lexicon, select_split, split_of
from companion.g2p.metrics import error_rates, error_rates_by_length, phoneme_error_interval
from companion.g2p.model_files import load_model
from companion.g2p.models import RecurrentG2P
from companion.g2p.training import training_pairs, training_steps
from companion.g2p.transformer import TransformerG2P

__all__ = [
    "RecurrentG2P",
    "TransformerG2P",
    "beam_search",
    "encode_words",
    "error_rates",
    "error_rates_by_length",
    "evaluate",
    "load_lexicon",
    "load_model",
    "phoneme_error_interval",
    "predict",
    "select_split",
    "split_of",
    "training_pairs",
    "training_steps",
]
