# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.wrappers.bootstrap import BootStrapper as BootStrapper
from gapless.metrics.wrappers.multioutput import MultioutputWrapper as MultioutputWrapper
from gapless.metrics.wrappers.multitask import MultitaskWrapper as MultitaskWrapper
from gapless.metrics.wrappers.running import Running as Running
from gapless.metrics.wrappers.running import RunningMean as RunningMean
from gapless.metrics.wrappers.running import RunningSum as RunningSum
from gapless.metrics.wrappers.tracker import MetricTracker as MetricTracker
from gapless.metrics.wrappers.transformations import BinaryTargetTransformer as BinaryTargetTransformer
from gapless.metrics.wrappers.transformations import LambdaInputTransformer as LambdaInputTransformer
from gapless.metrics.wrappers.transformations import MetricInputTransformer as MetricInputTransformer
from gapless.metrics.wrappers.transparent import ClasswiseWrapper as ClasswiseWrapper
from gapless.metrics.wrappers.transparent import MinMaxMetric as MinMaxMetric
