r"""The words of complaints, English and Chinese: what is spoken of and how it moves.

Chinese text has no spaces, so that words end where letters end rather than at `\b`.
"""

from __future__ import annotations

import re


def _words(english: str, chinese: str = "") -> re.Pattern[str]:
    parts = [rf"(?<![a-z])(?:{english})(?![a-z])"] + ([f"(?:{chinese})"] if chinese else [])
    return re.compile("|".join(parts))


CLAUSE = re.compile(
    r"[,;!?。，；！？、\n]|\.(?!\d)|\b(?:but|then|yet|while|whereas|although)\b|但是?|然后|而(?!且)|却|可是"
)
"""What parts one statement from the next."""

_EVALS = (
    r"(?<![a-z])(?:eval(?:uation)?s?|val(?:idation)?|test(?: set)?|held[- ]?out|benchmarks?)"
    r"(?![a-z])"
)
_SCORES = r"(?:rewards?|scores?|accurac(?:y|ies)|acc|correctness|(?:solve|pass) rate)(?![a-z])"
EVAL_SCORE = re.compile(
    rf"{_EVALS}[- _]?(?:set |data )?{_SCORES}"
    rf"|(?<![a-z]){_SCORES} (?:on|in|of) (?:the |our )?{_EVALS}"
    r"|(?:验证集?|测试集?|评测|评估)(?:上?的?)?(?:奖励|得分|分数|准确率|正确率)"
)
"""A score of an evaluation: not the reward that is trained on."""

SUBJECTS: dict[str, re.Pattern[str]] = {
    "eval": _words(
        r"eval(?:uation)?s?|val(?:idation)?|test(?: set| accuracy| score)?"
        r"|benchmarks?|held[- ]?out",
        "验证集?|测试集?|评测|评估",
    ),
    "reward": _words(
        r"rewards?|scores?|returns?|accurac(?:y|ies)|acc|correctness|solve rate|pass rate",
        "奖励|回报|得分|分数|准确率|正确率",
    ),
    "kl": _words(r"kl(?:[- _]?(?:divergence|loss|penalty))?", "散度"),
    "entropy": _words(r"entropy", "熵"),
    "length": _words(
        r"lengths?|responses?|answers?|completions?|outputs?|generations?|cots?|tokens per \w+",
        "长度|回答|输出|回复|生成",
    ),
    "loss": _words(r"loss(?:es)?", "损失"),
    "norm": _words(r"grad(?:ient)?s?(?:[- _]?norms?)?|gnorm", "梯度(?:范数)?"),
    "clip": _words(r"clip(?:[- _]?(?:frac(?:tion)?|ratio|rate|range))?|clipfrac", "裁剪"),
    "ratio": _words(r"(?:importance |is |prob(?:ability)? )?ratios?", "比率|重要性"),
    "lr": _words(r"learning rates?|lr", "学习率"),
    "advantage": _words(r"advantages?", "优势"),
    "time": _words(r"step[- _]?time|throughput|tokens per second|speed", "步时|速度|吞吐"),
}

MOVES: dict[str, re.Pattern[str]] = {
    "down": _words(
        r"drop(?:s|ped|ping)?|fell|falls?|falling|fallen|collaps(?:e|es|ed|ing)|crash(?:es|ed|ing)?"
        r"|went down|go(?:es)? down|going down|down|declin\w+|decreas\w+|degrad\w+"
        r"|worse|tank(?:ed|s)?"
        r"|plung\w+|plummet\w*|shr[aiu]nk\w*|dips?|dipped|lower|sank|(?:went|goes"
        r"|going|gone) to (?:0|zero|the floor)|vanish\w*|dies|died",
        "下降|下跌|掉|跌|降|崩|变差|暴跌|骤降|减小|减少|坍塌|塌",
    ),
    "up": _words(
        r"ris(?:e|es|en|ing)|rose|grow(?:s|ing|n)?|grew|increas\w+|climb\w*|went up"
        r"|go(?:es)? up|going up"
        r"|up|explod\w+|blow(?:s|ing)? up|blew up|diverg\w+|higher|too high|runaway"
        r"|runs away|keeps growing",
        "上升|上涨|升高|增加|增大|增长|变大|飙升|暴涨|爆炸|发散|越来越高|涨|升",
    ),
    "flat": _words(
        r"flat|plateau\w*|stuck|has not moved|hasn't moved|not mov\w+|doesn't move|does not move"
        r"|not improv\w+|stop(?:s|ped) (?:improv|ris|learn)\w+|no improvement"
        r"|does(?: not|n't) (?:improve|increase|learn)"
        r"|stagnat\w+|constant"
        r"|not learning|stays?|unchanged|never (?:moves|rises|improves)|always",
        "不动|没动|不变|平了|停滞|不涨|不升|没有提升|不学|一直|始终|卡在",
    ),
    "zero": re.compile(
        r"(?:\bis|\bare|\bat|\bto|\bexactly|=|\ball|\bstays?|\balways)\s+(?:exactly\s+|all\s+)?"
        r"(?:0(?:\.0+)?(?![\d.])|zero\b)"
        r"|(?<!left )(?<!leaves )(?<!from )(?<!off )(?<!below )(?<!above )(?<!under )\bzero\b"
        r"|(?:为|是|变成|到|成|变)\s*(?:0(?:\.0+)?(?![\d.])|零)|归零|全零|全0"
    ),
    "spike": _words(
        r"spik(?:e|es|ed|ing|y)|jump(?:s|ed|ing)?|surg\w+|shot up|shoots up|peaks?"
        r"|bursts?|hundreds(?! of)|huge",
        "尖峰|突增|跳变|激增|突刺|毛刺|突然变大|飙",
    ),
    "high": _words(
        r"high|large[r]?|big(?:ger)?|twice|doubl\w+|tripl\w+|enormous",
        "偏大|偏高|过大|过高|太大|太高",
    ),
    "low": _words(
        r"low|small(?:er)?|tiny|halved|half (?:of|as|what)", "偏小|偏低|过小|过低|太小|太低"
    ),
    "odd": _words(
        r"odd|strange|weird|wrong|broken|differ(?:s|ed|ent|ently)?|suspicious|grainy|nois[ye]\w*"
        r"|jumpy|unstable|not right|not normal|abnormal",
        "奇怪|异常|不对|不正常|抖动|震荡|不稳",
    ),
    "shorter": _words(r"shorter(?: and shorter)?|too short|short", "变短|越来越短|太短"),
    "longer": _words(
        r"longer(?: and longer)?|long(?! (?:time|run|while|ago|enough))|truncat\w+"
        r"|hits? (?:the )?(?:token |length "
        r"|max(?:imum)? )?(?:limit|cap)"
        r"|always hit the limit|run away in length|max(?:imum)? length",
        "变长|越来越长|太长|超长|被截断|截断|顶到上限",
    ),
    "off_one": _words(
        r"not (?:be )?1|not equal to 1|off 1|differs? from 1|not one", "不是\\s*1|不等于\\s*1"
    ),
}

PAIRS: dict[tuple[str, str], str] = {
    ("reward", "down"): "reward_drop",
    ("reward", "flat"): "reward_flat",
    ("reward", "zero"): "reward_zero",
    ("reward", "up"): "reward_rise",
    ("reward", "spike"): "reward_spike",
    ("eval", "down"): "eval_down",
    ("eval", "flat"): "eval_down",
    ("eval", "low"): "eval_down",
    ("eval", "zero"): "eval_down",
    ("eval", "up"): "eval_up",
    ("eval", "high"): "eval_up",
    ("eval", "spike"): "eval_odd",
    ("eval", "odd"): "eval_odd",
    ("kl", "up"): "kl_up",
    ("kl", "spike"): "kl_up",
    ("kl", "down"): "kl_down",
    ("kl", "zero"): "kl_zero",
    ("entropy", "up"): "entropy_up",
    ("entropy", "spike"): "entropy_up",
    ("entropy", "down"): "entropy_down",
    ("entropy", "zero"): "entropy_down",
    ("length", "up"): "length_up",
    ("length", "longer"): "length_up",
    ("length", "spike"): "length_up",
    ("length", "down"): "length_down",
    ("length", "shorter"): "length_down",
    ("loss", "zero"): "loss_zero",
    ("loss", "up"): "loss_up",
    ("loss", "spike"): "loss_up",
    ("norm", "up"): "grad_norm_spike",
    ("norm", "spike"): "grad_norm_spike",
    ("norm", "zero"): "grad_norm_zero",
    ("norm", "down"): "grad_norm_down",
    ("clip", "up"): "clip",
    ("clip", "spike"): "clip",
    ("clip", "zero"): "clip",
    ("clip", "flat"): "clip",
    ("ratio", "off_one"): "ratio_not_one",
    ("ratio", "up"): "ratio_not_one",
    ("ratio", "spike"): "ratio_not_one",
    ("reward", "odd"): "reward_odd",
    ("kl", "high"): "kl_up",
    ("kl", "low"): "kl_down",
    ("kl", "odd"): "kl_odd",
    ("entropy", "high"): "entropy_up",
    ("entropy", "low"): "entropy_down",
    ("entropy", "odd"): "entropy_odd",
    ("loss", "high"): "loss_up",
    ("loss", "odd"): "loss_odd",
    ("norm", "high"): "grad_norm_odd",
    ("norm", "low"): "grad_norm_down",
    ("norm", "odd"): "grad_norm_odd",
    **{("clip", move): "clip" for move in ("down", "high", "low", "odd")},
    **{("ratio", move): "ratio_not_one" for move in ("down", "high", "low", "odd")},
    **{("lr", move): "lr_odd" for move in MOVES},
    **{("advantage", move): "advantages_odd" for move in MOVES},
    ("time", "up"): "slow",
    ("time", "spike"): "slow",
    ("time", "down"): "slow",
}

_LEARNER = r"(?:training|learning|progress|it|(?:the |our )?(?:model|policy|run))"
_NOT_LOSS = r"(?:prompts?|padding|pad|tool \w+|observations?|eos|stop tokens?)"
"""What has no place in the loss, or is doubted there."""

ALONE: dict[str, re.Pattern[str]] = {
    "mask_doubt": _words(
        rf"mask(?:s|ed|ing)?(?!_)|{_NOT_LOSS}(?: tokens?)? .{{0,30}}(?:trained|in the loss)"
        r"|train(?:s|ed|ing)? (?:on|with) (?:the )?(?:right|wrong|correct|prompt|padding|tool)"
        r"|trained[ _-]tokens?|(?:right|wrong|correct) tokens|token counts?",
        "掩码|遮罩|(?:prompt|提示词?|填充|padding|工具).{0,8}(?:训练|损失|loss|梯度)"
        "|(?:训练|损失).{0,6}(?:prompt|提示词?|填充)",
    ),
    "precision_doubt": _words(
        r"numerical(?:ly)?|numerics|precision|imprecise|bf-?16|bfloat-?16|fp-?16|float-?16|fp-?8"
        r"|quanti[sz]\w+|grainy|rounding|log-?probs? (?:\w+ ){0,3}(?:noisy|coarse|rounded)"
        r"|(?:noisy|coarse|rounded) log-?probs?",
        "精度|数值.{0,2}(?:稳定|误差|问题)|舍入|量化",
    ),
    "norm_above_clip": _words(
        r"(?:above|over|exceeds?|larger than|higher than) (?:my |the |our )?(?:max )?"
        r"(?:clip(?:ping)? (?:value|threshold)|max_grad_norm)",
        "(?:超过|大于|高于)(?:裁剪阈值|裁剪值|max_grad_norm)",
    ),
    "reward_flat": _words(
        r"(?:not|n't|never|no longer|stop(?:s|ped)?|nothing is|without) ?(?:really |even |being )?"
        r"(?:learn(?:s|ing|ed|t)?|improv\w+|converg\w+)|learn(?:s|ed)? nothing"
        r"|no (?:more |real |further )?(?:progress|learning|improvement)|plateau\w*"
        rf"|{_LEARNER} (?:\w+ )?(?:stall\w*|stagnat\w*|flat\w*|stuck)"
        r"|(?:learning|progress|improvement) (?:\w+ )?stop(?:s|ped)"
        rf"|is (?:it|{_LEARNER}) (?:\w+ )?(?:training|learning|stuck)",
        "不学|学不[动到会]|没学|停止学习|不收敛|平台期|没有?进展|训(?:练)?不动|不再提升",
    ),
    "reward_drop": _words(
        rf"{_LEARNER} (?:\w+ ){{0,2}}(?:went wrong|collaps\w+|fell apart|worse|diverg\w+"
        r"|never recovered)",
        "训练.{0,2}(?:崩|变差|发散)|模型.{0,2}(?:崩|变差)|训崩",
    ),
    "nan": _words(r"nans?|infs?|infinity|non-?finite|overflow\w*", "非数|溢出"),
    "garbage_text": _words(
        r"garbage|gibberish|random (?:characters|tokens|text)|exclamation marks|mixed languages?"
        r"|repeat(?:s|ing|ed)?|repetiti(?:on|ve)|nonsense|incoherent|babbl\w+"
        r"|(?:text|outputs?|completions?|samples?) (?:\w+ ){1,3}(?:strange|weird|odd)",
        "乱码|胡言乱语|重复|感叹号|混杂|语无伦次|复读",
    ),
    "engine_mismatch": _words(
        r"log-?probs? (?:differ|mismatch)|(?:rollout|engine|vllm"
        r"|sglang)\b.{0,40}\b(?:differ|mismatch|disagree)\w*"
        r"|train(?:ing|er)?[-/ ]inference mismatch",
        "训推不一致|推理不一致",
    ),
    "clip": _words(r"clipp(?:ed|ing) (?:everything|all|too much)", "裁剪比例"),
    "judging_doubt": _words(
        r"spot[- ]?checks?|(?:checked|read|looked at) (?:them |some )?by hand|manual(?:ly)? \w+"
        r"|(?:answers?|samples?|outputs?) (?:are|look) (?:all )?(?:wrong|incorrect|bad)"
        r"|(?:answers?|outputs?) (?:aren't|are not) \w+"
        r"|verifier (?:is |be )?(?:wrong|broken|dead|die[ds]?)",
        "人工(?:抽查|检查)|判错|误判|验证器.{0,4}(?:坏|错)",
    ),
    "reward_hacking": _words(
        r"reward[- ]hack(?:s|ed|ing)?|hack(?:s|ed|ing) (?:the |its |our )?reward"
        r"|gam(?:es|ed|ing) (?:the|my|our|its) (?:reward|verifier|judge|checker|grader)",
        "奖励作弊|奖励黑客|刷奖励|骗奖励",
    ),
    "kl_missing": _words(
        r"(?:no|without(?: a| any)?) kl(?= (?:in|at|is|was|logged|anywhere|curve|metric|value)|$)"
        r"|kl (?:is |was )?(?:missing|absent|(?:not|never) logged|isn't logged)",
        "没有\\s*kl(?=$|[,，。 ])|kl\\s*没有记录",
    ),
    "tool_calls": _words(
        r"(?:stopped|no longer|stops) call\w* (?:the |any )?tools?", "不调用工具|不再调用"
    ),
    "truncation": _words(r"truncat\w+|cut off|incomplete|unfinished", "截断|不完整"),
    "hang": _words(
        r"hangs?|hung|hanging|stuck|deadlock\w*|freez\w+|froze|nccl|timed? ?out",
        "卡住|挂起|卡死|死锁|超时",
    ),
    "slow": _words(
        r"(?<!learning )(?<!learning seems )(?<!learning is )(?<!learning gets )(?<!learns )"
        r"slow(?:er|s|ed)?|gpu (?:use|utili[sz]ation|util) (?:is|at) \S+|idle"
        r"|bottleneck|takes forever",
        "变慢|很慢|太慢|慢了|空闲|瓶颈|利用率低",
    ),
    "resume_worse": _words(
        r"(?:after|since) (?:the |a )?(?:resum\w+|restart\w*)|resum(?:e|ed"
        r"|ing) (?:from|at|and|it)|restart(?:ed)? from",
        "恢复(?:训练)?后|续训|断点|重启后",
    ),
    "is_normal": _words(
        r"(?:is|are) (?:this|that|it|these|they) (?:normal|a problem|ok(?:ay)?"
        r"|expected|a bug)|acceptable"
        r"|normal or not|should (?:i|it|this|the) .{0,40}\b(?:not )?be"
        r"|or (?:is it )?just learning|is it normal|all ?right|is (?:this|that|it) a collapse"
        r"|anything(?: (?:odd|wrong|strange|weird|unusual|suspicious|bad|else))?(?=\s*(?:$|[?!.]))",
        "正常吗|正常么|是不是有问题|有没有问题|有问题吗|有什么问题|是否正常|正不正常|有(?:什么|没有)异常",
    ),
}

FALLBACK = ("hang", "reward_flat", "reward_drop")
"""Said without a subject of their own: left out where the clause says more."""

SIGNALS: dict[str, str] = {
    **dict.fromkeys(
        ("reward_drop", "reward_flat", "reward_zero", "reward_rise", "reward_rise_eval_down"),
        "reward_mean",
    ),
    "reward_spike": "reward_mean",
    "reward_odd": "reward_mean",
    **dict.fromkeys(("kl_up", "kl_down", "kl_zero", "kl_odd"), "kl_ref"),
    **dict.fromkeys(("entropy_up", "entropy_down", "entropy_odd"), "entropy"),
    **dict.fromkeys(("length_up", "length_down"), "completion_length_mean"),
    **dict.fromkeys(("loss_zero", "loss_up", "loss_odd"), "loss"),
    **dict.fromkeys(
        ("grad_norm_spike", "grad_norm_zero", "grad_norm_down", "grad_norm_odd", "norm_above_clip"),
        "grad_norm_preclip",
    ),
    "lr_odd": "learning_rate",
    "clip": "clip_frac_total",
    "truncation": "truncation_rate",
    "ratio_not_one": "ratio_max",
    "engine_mismatch": "logprob_diff_mean",
    "slow": "step_time",
}
"""Canonical signal of a symptom; the rest have none."""
