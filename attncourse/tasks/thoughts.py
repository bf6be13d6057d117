"""Misunderstandings that occur in many tasks, written once.

A task's file may say one in its own words: `task.fault(thoughts.POLARITY, "…", "…", …)`.
"""

from attncourse.checks.task import Thought

# --- precision and memory -----------------------------------------------------------------------

FLOAT32 = Thought(
    "C-FLOAT32",
    "Computing in float32 is always fine.",
    "The inputs came as float64 and the result leaves as float32, or with float32's digits. The "
    "caller loses half of them. Keep the dtype that came.",
)
DETACHED = Thought(
    "C-DETACHED",
    "The numbers are right, so the answer is right.",
    "The values are, but no gradient arrives: `.detach()`, `.data`, `no_grad`, a new tensor made "
    "from numbers, or a detour through NumPy cut the graph, and such a model cannot learn.",
)

ON_THE_CPU = Thought(
    "C-ON-THE-CPU",
    "A new tensor is where it is needed.",
    "`torch.zeros` and its like make theirs on the CPU. On a GPU the inputs lie elsewhere, and the "
    "first operation with both stops. Say `device=x.device`, or use `torch.zeros_like(x)`.",
)

BEST_ALWAYS = Thought(
    "C-FASTEST-SAMPLE",
    "What disturbs makes slower, so the shortest sample is the true one.",
    "For the processor time of a CPU, yes. The clock of a GPU goes up as well as down, and a lucky "
    "sample is as rare as an unlucky one: with CUDA events, take the median.",
)

# --- softmax ------------------------------------------------------------------------------------

NAIVE_SOFTMAX = Thought(
    "D-NAIVE-SOFTMAX",
    "The formula says exp over the sum of exps, so that is what I compute.",
    "On paper yes. With scores above 88, exp is infinite in float32, and infinity over infinity is "
    "NaN. Use a softmax that shifts the scores first.",
)
GLOBAL_MAX = Thought(
    "D-GLOBAL-MAX",
    "One shift for the whole table of scores, such as its largest, is enough to be safe.",
    "It may stop overflow, but the row of a query far below becomes all zeros after exp, and "
    "0/0 is NaN. Each row needs its own shift.",
)
NO_SOFTMAX = Thought(
    "D-NO-SOFTMAX",
    "The scores themselves are the weights.",
    "Scores are negative as often as positive and sum to anything. Between score and average, "
    "something has to turn them into shares of one.",
)
SOFTMAX_DIM = Thought(
    "D-SOFTMAX-DIM",
    "Softmax over the queries is the same as over the keys.",
    "Then each key hands out its weight among the queries: columns sum to one, rows do not. A "
    "query must divide its own attention among the keys.",
)
SOFTMAX_ALL = Thought(
    "D-SOFTMAX-ALL",
    "All weights of one sentence together sum to one.",
    "Each query asks its own question and spends its own budget of one. Here the queries compete "
    "with each other, and rows sum to less than one.",
)
HARD_ATTENTION = Thought(
    "D-HARD-ATTENTION",
    "A query takes the value of the best key.",
    "That is an ordinary look-up. The output jumps when another key wins, and no gradient can say "
    "how to improve a query. Attention averages all values.",
)
DETACHED_WEIGHTS = Thought(
    "D-DETACHED-WEIGHTS",
    "The weights are a by-product; only values need a gradient.",
    "Then query and key never learn: the gradient that says 'look elsewhere' flows through the "
    "weights. Something like `.detach()` or `no_grad` cuts it.",
)

# --- scale --------------------------------------------------------------------------------------

NO_SCALE = Thought(
    "D-NO-SCALE",
    "Softmax normalizes anyway, so the factor 1/√d makes no difference.",
    "It normalizes sums, not differences. Unscaled scores have variance d, so for wide vectors one "
    "key takes nearly all the weight and gradients vanish.",
)
SCALE_DK = Thought(
    "D-SCALE-DK",
    "Scores are divided by d, the width of a key.",
    "The variance of a score is d, so its typical size is the root of d. Dividing by all of d "
    "makes the scores tiny and the weights nearly uniform.",
)
SCALE_AFTER = Thought(
    "D-SCALE-AFTER",
    "First softmax, then scale.",
    "Then the rows no longer sum to one, and softmax has already saturated on the large scores. "
    "The scale has to act before the competition.",
)

# --- masks --------------------------------------------------------------------------------------

POLARITY = Thought(
    "M-POLARITY",
    "True in the mask means: hide this key.",
    "In some libraries it does. Here, as in `F.scaled_dot_product_attention`, True means this "
    "query may attend to this key. Your answer looks exactly where it must not.",
)
IGNORED = Thought(
    "M-IGNORED",
    "The mask can be left for later.",
    "Your weights are the same with and without a mask: padding and future words are read like any "
    "other.",
)
DEAD_ROW = Thought(
    "M-DEAD-ROW",
    "Filling hidden scores with −∞ settles every case.",
    "A query that may attend to nothing has a row of −∞ only, and its softmax is 0/0: NaN, which "
    "spreads through the whole model. Such a row must give zeros.",
)
DEAD_ROW_UNIFORM = Thought(
    "M-DEAD-ROW-UNIFORM",
    "A very negative fill like −1e9 hides a key in every case.",
    "Not if all keys of a row are hidden: then all are equally low, and softmax spreads the weight "
    "evenly over everything forbidden. Such a row must give zeros.",
)
DEAD_ROW_GRADIENT = Thought(
    "M-DEAD-ROW-GRADIENT",
    "Replacing NaN by 0 at the end repairs a row with nothing to attend to.",
    "It repairs the values. The NaN inside is still there, and on the way back it turns the "
    "gradients into NaN. Keep it from arising.",
)
AFTER_SOFTMAX = Thought(
    "M-AFTER-SOFTMAX",
    "Multiplying the weights by the mask after the softmax hides the keys.",
    "The hidden keys have already taken their share: rows now sum to less than one. Hide them "
    "before they compete.",
)
AFTER_RENORMALIZED = Thought(
    "M-AFTER-RENORMALIZED",
    "After the softmax I can mask the weights and divide by their new sum.",
    "On paper that is the same. But a hidden key with a high score has pressed all visible weights "
    "to zero, and 0/0 cannot bring them back. Hide keys before they compete.",
)
ADD_BOOL = Thought(
    "M-ADD-BOOL",
    "Adding the mask to the scores hides the keys.",
    "True counts as 1 and False as 0, so you add 1 to the allowed scores and hide nothing. An "
    "additive mask would have to hold 0 and −∞.",
)
INF_TIMES_ZERO = Thought(
    "M-INF-TIMES-ZERO",
    "(1 − mask) · −∞ is 0 where the mask is 1.",
    "0 · ∞ is NaN in floating point, so every allowed score is destroyed. Choose between two "
    "numbers instead of multiplying.",
)
FILL_ZERO = Thought(
    "M-FILL-ZERO",
    "A hidden key gets score 0.",
    "Score 0 is an ordinary score: exp(0) = 1, more than any negative score gets. To vanish after "
    "exp, a score has to go all the way down.",
)
SMALL_FILL = Thought(
    "M-SMALL-FILL",
    "−10,000 is as good as −∞.",
    "Only while every real score lies above it. Where real scores reach −30,000, the hidden keys "
    "win. Use the lowest number the dtype has.",
)
TRANSPOSED_MASK = Thought(
    "M-TRANSPOSED",
    "Rows of the mask are keys and columns are queries.",
    "Scores have a row per query and a column per key, and so has the mask. Turned around, a "
    "causal mask shows the future and hides the past.",
)
MASKED_VALUES = Thought(
    "M-VALUES",
    "Setting the hidden values to zero hides their keys.",
    "A zero value still takes part with its weight and pulls the average toward zero; the others "
    "get too little. The competition itself must leave it out.",
)
MAPS_UNMASKED = Thought(
    "M-MAPS-UNMASKED",
    "The mask matters for the output; the weights are only for looking at.",
    "Your output respects the mask, but the weights you return are computed without it, so the "
    "picture shows attention that never happened.",
)
ALWAYS_CAUSAL = Thought(
    "M-ALWAYS-CAUSAL",
    "Attention never looks ahead, so a causal mask is always in place.",
    "Only a decoder must not look ahead, and then the caller passes a mask. Without one, every "
    "query may read every key.",
)
ONE_ROW = Thought(
    "M-ONE-ROW",
    "A key hidden from one query is hidden from all.",
    "The mask has a row for every query, and rows differ. You let the first row speak for "
    "everybody.",
)
FIRST_MASK = Thought(
    "M-FIRST-MASK",
    "One mask serves the whole batch.",
    "Every sentence has its own length, and so its own mask. You let the first one speak for all.",
)
PLUS_INFINITY = Thought(
    "M-PLUS-INFINITY",
    "Infinity hides a score.",
    "Only −∞ does: exp(−∞) is 0. +∞ is the highest score there is, and the softmax shifts by it: "
    "∞ − ∞ is NaN, in every row that hides anything. Look for a sign too many, or too few.",
)
IF_MASK = Thought(
    "M-IF-MASK",
    "`if mask:` asks whether there is a mask.",
    "It asks whether the mask is True, and a tensor of many numbers is neither: an error. Ask "
    "`if mask is not None`.",
)

# --- what is returned ---------------------------------------------------------------------------

SCORES_AS_WEIGHTS = Thought(
    "D-SCORES-AS-WEIGHTS",
    "The second result is the matrix of scores.",
    "Scores are what enters the softmax; weights are what leaves it. A heat map of scores has rows "
    "that sum to nothing in particular. Return the weights.",
)
SWAPPED_RESULTS = Thought(
    "D-SWAPPED-RESULTS",
    "The function returns the weights and the output.",
    "Both are right, in the other order: first the output, then the weights.",
)
OUTPUT_ONLY = Thought(
    "D-OUTPUT-ONLY",
    "Only the output is needed.",
    "The weights are half of the promise: without them nobody can see where a query looked. Return "
    "the pair (output, weights).",
)
DROPOUT_PLACE = Thought(
    "D-DROPOUT-PLACE",
    "Attention includes dropout, so some weights are set to zero at random.",
    "Dropout belongs to training, and to the layer that owns this function. The weights that are "
    "returned must be the ones before any dropout, or heat maps lie.",
)
KEY_AS_VALUE = Thought(
    "D-KEY-AS-VALUE",
    "The weights average the keys.",
    "Keys are for being found, values for being read: the label of a drawer and its content. Your "
    "output never reads `value`.",
)
