# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.text.bleu import BLEUScore as BLEUScore
from gapless.metrics.text.edit import EditDistance as EditDistance
from gapless.metrics.text.perplexity import Perplexity as Perplexity
from gapless.metrics.text.rates import CharErrorRate as CharErrorRate
from gapless.metrics.text.rates import MatchErrorRate as MatchErrorRate
from gapless.metrics.text.rates import WordErrorRate as WordErrorRate
from gapless.metrics.text.rates import WordInfoLost as WordInfoLost
from gapless.metrics.text.rates import WordInfoPreserved as WordInfoPreserved
from gapless.metrics.text.rouge import ROUGEScore as ROUGEScore
from gapless.metrics.text.token_accuracy import TokenAccuracy as TokenAccuracy
