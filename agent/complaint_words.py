r"""The words of complaints, English and Chinese: what is spoken of and how it moves.

Chinese text has no spaces, so that words end where letters end rather than at `\b`.
"""

from __future__ import annotations

import re

from firstbad.agent.complaint_levels import AUX, BLOWS_UP, DIES, LEVEL, PROCESS


def _words(english: str, chinese: str = "") -> re.Pattern[str]:
    parts = [rf"(?<![a-z])(?:{english})(?![a-z])"] + ([f"(?:{chinese})"] if chinese else [])
    return re.compile("|".join(parts))


_UNSTEADY = (
    r"jumpy|unstable|swing\w*|swung|wobbl\w*|rough(?:er)?|bump(?:y|s)?|erratic\w*"
    r"|oscillat\w+|all over the place|volatile"
    r"|zig-?zag\w*|fluctuat\w+|jump(?:s|ed|ing)? (?:all over|around|up and down)"
)
"""What is said of a curve that is not smooth."""

CLAUSE = re.compile(
    r"[,;!?。，；！？、\n]|\.(?!\d)|\b(?:but|then|yet|while|whereas|(?:al|even )?though)\b"
    r"|但是?|然后|而(?!且)|却|可是",
    re.IGNORECASE,
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
        r"rewards?|scores?|returns?|accurac(?:y|ies)|acc|correctness|performance|quality"
        r"|(?:solve|pass|success|win) rates?|pass@\d+",
        "奖励|回报|得分|分数|准确率|正确率",
    ),
    "kl": _words(r"kl(?:[- _]?(?:divergence|loss|penalty))?", "散度"),
    "entropy": _words(r"entropy", "熵"),
    "length": _words(
        r"lengths?|responses?|repl(?:y|ies)|answers?|completions?|outputs?|generations?|cots?"
        r"|tokens per \w+",
        "长度|回答|输出|回复|生成",
    ),
    "loss": _words(r"loss(?:es)?", "损失"),
    "norm": _words(r"grad(?:ient)?s?(?:[- _]?norms?)?|gnorm", "梯度(?:范数)?"),
    "clip": _words(r"clip(?:[- _]?(?:frac(?:tion)?|ratio|rate|range))?|clipfrac", "裁剪"),
    "ratio": _words(
        r"(?:importance |is |prob(?:ability)? )?(?:log-?)?ratios?|importance weights?",
        "比率|重要性",
    ),
    "lr": _words(r"learning rates?|lr", "学习率"),
    "advantage": _words(r"advantages?|(?:group )?baselines?|group std", "优势"),
    "time": _words(r"step[- _]?time|throughput|tokens per second|speed", "步时|速度|吞吐"),
}

MOVES: dict[str, re.Pattern[str]] = {
    "down": _words(
        r"drop(?:s|ped|ping)?|fell|falls?|falling|fallen|collaps(?:e|es|ed|ing)|crash(?:es|ed|ing)?"
        r"|went down|go(?:es)? down|going down|down|declin\w+|decreas\w+|degrad\w+"
        r"|worse|tank(?:ed|s)?"
        r"|plung\w+|plummet\w*|shr[aiu]nk\w*|dips?|dipped|lower|sank|sinks?|(?:went|goes"
        r"|going|gone) to (?:0|zero|the floor)|vanish\w*|disappear\w*|dies|died"
        r"|los(?:t|es?|ing)|halv(?:es?|ed|ing)|cut in half|sli(?:d|des|ding)|slip(?:s|ped|ping)?"
        r"|erod\w+|deteriorat\w+|regress\w*|crater\w*|nosediv\w+|holes?|(?:is|was|are|were) gone"
        r"|(?:turn|went|goes?|gone|fell|falls|bec(?:ame|omes))\w* (?:below zero|negative)"
        r"|back (?:to )?where (?:it|they|we) (?:had )?(?:begun|began|started)",
        "下降|下跌|掉|跌|降|崩|变差|暴跌|骤降|减小|减少|坍塌|塌|减半|变负|变为负",
    ),
    "up": _words(
        r"ris(?:e|es|en|ing)|rose|grow(?:s|ing|n)?|grew|increas\w+|climb\w*|went up"
        r"|go(?:es)? up|going up"
        r"|(?<!made )(?<!cut )up"
        r"|doubl(?:es?|ed|ing)|tripl(?:es?|ed|ing)|quadrupl\w+|[\d.]+[- ]?fold|soar\w*"
        r"|skyrocket\w*|balloon\w*|explod\w+|blow(?:s|ing)? up|blew up|diverg\w+|higher"
        r"|too high|runaway"
        r"|runs away|keeps growing",
        "翻倍|翻了|上升|上涨|升高|增加|增大|增长|变大|飙升|暴涨|爆炸|发散|越来越高|涨|升",
    ),
    "flat": _words(
        r"flat|plateau\w*|stuck|has not moved|hasn't moved|not mov\w+|doesn't move|does not move"
        r"|not improv\w+|stop(?:s|ped) (?:improv|ris|learn)\w+|no improvement"
        r"|does(?: not|n't) (?:improve|increase|learn)"
        r"|stagnat\w+|constant|identical|saturat\w*|capped|(?:barely|hardly) (?:mov|improv|ris)\w+"
        r"|no (?:better|gain)|do(?:es)? nothing"
        r"|not learning|stays?|unchanged|never (?:moves|rises|improves)|always",
        "不动|没动|不变|平了|停滞|不涨|不升|没有提升|不学|一直|始终|卡在",
    ),
    "zero": re.compile(
        r"(?:\bis|\bare|\bat|\bto|\bexactly|=|\ball|\bstays?|\balways|\brewards?|\bkl|\bentropy"
        r"|\bloss|\bnorm"
        r"|\baccuracy)\s+(?:exactly\s+|all\s+)?(?:0(?:\.0+)?(?![\d.]|\s*(?:to|->|→))|zero\b)"
        r"|(?<!left )(?<!leaves )(?<!from )(?<!off )"
        r"(?<!below )(?<!above )(?<!under )(?<!not )\bzero\b"
        r"|(?:为|是|变成|到|成|变)\s*(?:0(?:\.0+)?(?![\d.])|零)|归零|全零|全0"
    ),
    "spike": _words(
        r"jump(?:s|ed|ing)?(?! (?:all over|around|up and down))|surg\w+"
        r"|shot up|shoots up"
        r"|(?:several )?(?:hundreds?|thousands?)(?! of)|huge",
        "突增|跳变|激增|突然变大|飙",
    ),
    "spiky": _words(r"spik(?:e|es|ed|ing|y)|peak(?:s|y)?|bursts?", "尖峰|突刺|毛刺"),
    "high": _words(
        r"high|large[r]?|big(?:ger)?|twice|enormous",
        "偏大|偏高|过大|过高|太大|太高",
    ),
    "low": _words(r"low|small(?:er)?|tiny|half (?:of|as|what)", "偏小|偏低|过小|过低|太小|太低"),
    "odd": _words(
        r"odd|strange|weird|wrong|broken|differ(?:s|ed|ent|ently)?|suspicious|grainy|nois[ye]\w*"
        rf"|{_UNSTEADY}|leaves? the old curves?|not right|not normal|abnormal",
        "奇怪|异常|不对|不正常|抖动|震荡|不稳",
    ),
    "negative": _words(
        r"negative|(?:at|is|was|are|to|=)\s*[-−](?=[\d.]*[1-9])"
        r"|(?:below|under) (?:zero|0)|le(?:ft|aves?) (?:zero|0)|(?:a|the|its) sign",
        "负",
    ),
    "level": LEVEL,
    "shorter": _words(r"shorter(?: and shorter)?|too short|short|empty", "变短|越来越短|太短"),
    "longer": _words(
        r"longer(?: and longer)?|(?<!as )long(?! (?:time|run|while|ago|enough))|truncat\w+"
        r"|hits? (?:the )?(?:token |length "
        r"|max(?:imum)? )?(?:limit|cap)"
        r"|(?:run|go)(?:s|es|ning|ing)? (?:up )?to the (?:max\w*|limit|cap|end)"
        r"|always hit the limit|run away in length|max(?:imum)? length",
        "变长|越来越长|太长|超长|被截断|截断|顶到上限",
    ),
    "off_one": _words(
        r"not (?:be )?1|not equal to 1|off 1|differs? from 1|not one"
        r"|(?:is|are|sits?) (?:far |well )?(?:above|below|off) 1",
        "不是\\s*1|不等于\\s*1",
    ),
}

PAIRS: dict[tuple[str, str], str] = {
    ("reward", "down"): "reward_drop",
    ("reward", "flat"): "reward_flat",
    ("reward", "zero"): "reward_zero",
    ("reward", "up"): "reward_rise",
    ("reward", "spike"): "reward_spike",
    ("reward", "spiky"): "reward_spike",
    ("eval", "down"): "eval_down",
    ("eval", "flat"): "eval_down",
    ("eval", "low"): "eval_down",
    ("eval", "zero"): "eval_down",
    ("eval", "up"): "eval_up",
    ("eval", "high"): "eval_up",
    ("eval", "spike"): "eval_odd",
    ("eval", "spiky"): "eval_odd",
    ("eval", "odd"): "eval_odd",
    ("kl", "up"): "kl_up",
    ("kl", "spike"): "kl_up",
    ("kl", "spiky"): "kl_spike",
    ("kl", "down"): "kl_down",
    ("kl", "zero"): "kl_zero",
    ("entropy", "up"): "entropy_up",
    ("entropy", "spike"): "entropy_up",
    ("entropy", "spiky"): "entropy_spike",
    ("entropy", "down"): "entropy_down",
    ("entropy", "zero"): "entropy_down",
    ("length", "up"): "length_up",
    ("length", "longer"): "length_up",
    ("length", "spike"): "length_up",
    ("length", "spiky"): "length_spike",
    ("length", "down"): "length_down",
    ("length", "shorter"): "length_down",
    ("loss", "zero"): "loss_zero",
    ("loss", "up"): "loss_up",
    ("loss", "spike"): "loss_up",
    ("loss", "spiky"): "loss_spike",
    ("norm", "up"): "grad_norm_spike",
    ("norm", "spike"): "grad_norm_spike",
    ("norm", "spiky"): "grad_norm_spike",
    ("norm", "zero"): "grad_norm_zero",
    ("norm", "down"): "grad_norm_down",
    ("clip", "up"): "clip",
    ("clip", "spike"): "clip",
    ("clip", "spiky"): "clip",
    ("clip", "zero"): "clip",
    ("clip", "flat"): "clip",
    ("ratio", "off_one"): "ratio_not_one",
    ("ratio", "up"): "ratio_not_one",
    ("ratio", "spike"): "ratio_not_one",
    ("ratio", "spiky"): "ratio_not_one",
    **{("reward", move): "reward_odd" for move in ("odd", "high", "low", "negative", "level")},
    ("kl", "high"): "kl_up",
    ("kl", "low"): "kl_down",
    **{("kl", move): "kl_odd" for move in ("odd", "flat", "negative", "level")},
    ("entropy", "high"): "entropy_up",
    ("entropy", "low"): "entropy_down",
    **{("entropy", move): "entropy_odd" for move in ("odd", "negative", "level")},
    ("loss", "high"): "loss_up",
    **{("loss", move): "loss_odd" for move in ("odd", "negative", "level")},
    ("norm", "high"): "grad_norm_odd",
    ("norm", "low"): "grad_norm_down",
    **{("norm", move): "grad_norm_odd" for move in ("odd", "level")},
    **{("clip", move): "clip" for move in ("down", "high", "low", "odd", "level")},
    **{("ratio", move): "ratio_not_one" for move in ("down", "high", "low", "odd", "level")},
    **{("lr", move): "lr_odd" for move in MOVES},
    **{("advantage", move): "advantages_odd" for move in MOVES},
    ("time", "up"): "slow",
    ("time", "spike"): "slow",
    ("time", "spiky"): "slow",
    ("time", "down"): "slow",
}

_LEARNER = r"(?:training|learning|progress|it|grpo|ppo|rl|(?:the |our )?(?:model|policy|run|curve))"
_RUN = (
    r"(?:training|job|process|script|run|it|grpo|ppo|rl|everything|rollouts?|generation|vllm|gpus?)"
)
_NOT_LOSS = r"(?:prompts?|padding|pad|tool \w+|observations?|eos|stop tokens?)"
"""What has no place in the loss, or is doubted there."""

_ALIKE = r"(?:repeats?|(?:are|is) (?:\w+ )?(?:the same|identical|equal|reused)\b)"

ALONE: dict[str, re.Pattern[str]] = {
    "mask_doubt": _words(
        rf"mask(?:s|ed|ing)?(?!_)|{_NOT_LOSS}(?: tokens?)? .{{0,30}}(?:trained|in the loss)"
        r"|train(?:s|ed|ing)? (?:on|with) (?:the )?(?:right|wrong|correct|prompt|padding|tool)"
        r"|trained[ _-]tokens?|(?:right|wrong|correct) tokens|token count(?:s|ers?)?",
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
        r"|stop(?:s|ped) working|(?:lora|adapters?) (?:does not|doesn't)(?= learn|$)"
        rf"|{_LEARNER} (?:\w+ )?(?:stagnat\w*|flat\w*)"
        r"|(?:learning|progress|(?:the |our )?(?:model|policy|curve)) (?:\w+ )?(?:stall\w*|stuck)"
        r"|(?:learning|progress|improvement) (?:\w+ )?stop(?:s|ped)"
        rf"|is (?:it|{_LEARNER}) (?:\w+ )?(?:training|learning)",
        "不学|学不[动到会]|没学|停止学习|不收敛|平台期|没有?进展|训(?:练)?不动|不再提升",
    ),
    "reward_drop": _words(
        rf"{_LEARNER} (?:\w+ ){{0,2}}(?:went wrong|collaps\w+|fell apart|worse"
        r"|never recovered|(?:is|was) ruined)"
        r"|collaps\w+ (?:on|in|at)|destroyed (?:my|our|the)",
        "训练.{0,2}(?:崩(?!溃退出)|变差)|模型.{0,2}(?:崩|变差)|训崩",
    ),
    "crashed": _words(
        rf"{PROCESS} {AUX}{DIES}|^(?:and |it |then |suddenly |just )*{DIES}"
        r"|(?<!no )(?:the|a|an|after|since|before|hard|random|sudden) crash(?:es)?(?! in| of)"
        r"|crashed (?:at|after|in|with|on|by)|(?:cuda |gpu )?out[- ]of[- ]memory|(?<!no )oom"
        r"|oom[- ]?kill\w*|killed by|segmentation fault|core dump\w*|sigkill|sigterm|sigsegv"
        r"|(?<!no )(?<!with one )(?<!the )(?<!without )(?<!without an )exceptions?(?! of)"
        r"|(?<!no )traceback|(?:exit|return) code \d+|illegal memory access|device-side assert"
        r"|(?:cuda|nccl|key|value|type|index|runtime|timeout|connection|memory|os|io|import"
        r"|attribute|assertion|file ?not ?found|zero ?division|outofmemory|dist ?backend)[- ]?error"
        rf"|(?:run|training|job|process|script) {AUX}stop(?:s|ped)?"
        r"(?=\s*$| (?:at|after|in|on) (?:about |around )?(?:step|iter|\d))"
        r"|stop(?:s|ped) (?:early|before the end|too soon)|never (?:finish(?:es|ed)?|completed?s?)"
        r"|(?:did not|didn't|does not|doesn't) finish|ended (?:early|before)",
        "报错|挂了|被杀|被kill|崩溃退出|进程.{0,4}(?:崩|退出|死|挂)|显存.{0,2}(?:不足|溢出|爆)"
        "|爆显存|内存(?:不足|溢出)|抛.{0,3}异常|中断了|异常退出|闪退",
    ),
    "diverged": _words(
        rf"{PROCESS} {AUX}{BLOWS_UP}|^(?:and |it |then |suddenly |just )*{BLOWS_UP}"
        r"|(?<!kl )(?<!kl-)(?:training|numerical) (?:divergence|explosion)|blow-?up",
        "训练.{0,2}(?:发散|爆炸)|训飞|跑飞",
    ),
    "reward_odd": _words(
        rf"{_LEARNER} (?:(?:is|was|looks?|gets?|got|became|much|very|so"
        rf"|more) ){{0,3}}(?:{_UNSTEADY})",
        "(?:训练|曲线).{0,3}(?:抖动|震荡|不稳)",
    ),
    "learning_slow": _words(
        r"(?:learn(?:s|ing)?|trains?|improv\w+) (?:(?:is|seems|looks|gets|far|too|very"
        r"|much) ){0,2}(?:slow(?:er|ly)?)",
        "学得.{0,2}慢|收敛.{0,2}慢",
    ),
    "same_completions": _words(
        r"word[- ]for[- ]word|(?:completions?|samples?|answers?|repl(?:y|ies)) (?:\w+ ){0,6}"
        r"(?:identical|the same|duplicates?d?)|duplicated? (?:completions?|samples?)"
        rf"|seeds? {_ALIKE}",
        "(?:回答|样本).{0,4}(?:相同|一样)",
    ),
    "stop_doubt": _words(
        r"(?:never|no longer|doesn't|does not|don't) (?:stops?|ends?|terminates?)|stop tokens?|eos",
        "停不下来|不停止|停止符|结束符",
    ),
    "frozen": _words(
        r"frozen|weights? (?:never|don't|do not) (?:move|change)s?|(?:did|have) (?:i|we) (?:\w+ )?"
        r"(?:freeze|frozen)|empty parameter list|no grad_fn|did the adapter come back",
        "冻结|没有更新",
    ),
    "data_order": _words(
        r"(?:another|different|wrong) order|never seen|one epoch never ends|epoch (?:is )?too long",
        "数据.{0,3}顺序",
    ),
    "template_doubt": _words(
        r"(?:chat )?template (?:is |was )?(?:wrong|missing|twice|not applied)|think(?:ing)? block"
        r"|does not start with the tokens|two (?:begin|bos)\S*|double bos",
        "聊天模板|对话模板",
    ),
    "prompt_ignored": _words(
        r"(?:same|one) (?:template|answer) for (?:every|each|all) prompts?"
        r"|ignor\w+ (?:the )?(?:prompt|image|question)s?|not to use the (?:image|prompt)",
        "(?:忽略|不看).{0,3}(?:提示|图)",
    ),
    "few_samples": _words(
        rf"is it the seed|(?:\w+ )?seeds(?! {_ALIKE})|beats? (?:\w+ ){0, 3}by|worth anything"
        r"|is that real(?! progress)"
        r"|one run each|looks? better than|reproduce",
        "复现|随机种子",
    ),
    "version_change": _words(
        r"(?:since|after) (?:i |we |the )?upgrad\w+|upgrad(?:ed|ing) (?:the )?\w+|newer? version",
        "升级",
    ),
    "nan": _words(r"nans?|infs?|infinity|non-?finite|overflow\w*", "非数|(?<!显存)(?<!内存)溢出"),
    "garbage_text": _words(
        r"garbage|gibberish|rubbish|(?:turn(?:s|ed)?|is|are|became) random"
        r"|random (?:characters|tokens|text)|exclamation marks|mixed languages?"
        r"|(?<!seeds )(?<!seed )repeat(?:s|ing|ed)?|repetiti(?:on|ve)|nonsense|incoherent|babbl\w+"
        r"|(?:text|outputs?|completions?|samples?) (?:\w+ ){1,3}(?:strange|weird|odd)",
        "乱码|胡言乱语|重复|感叹号|混杂|语无伦次|复读",
    ),
    "engine_mismatch": _words(
        r"log-?probs? (?:differ|mismatch)|(?:rollout|engine|vllm"
        r"|sglang)\b.{0,40}\b(?:differ|mismatch|disagree)\w*"
        r"|train(?:ing|er)?[-/ ]inference mismatch|mismatch kl|token prob\w+ error"
        r"|(?:sampler|rollout|engine)[-/ ]train\w* (?:kl|mismatch|gap)"
        r"|(?:probabilit\w+|log-?probs?|logits?)\b.{0,40}\b(?:correlate|drift|only match"
        r"|disagree)\w*"
        r"|not with (?:vllm|sglang|the engine)|with vllm than with|not with the other",
        "训推不一致|推理不一致",
    ),
    "clip": _words(r"clipp(?:ed|ing) (?:everything|all|too much)", "裁剪比例"),
    "judging_doubt": _words(
        r"spot[- ]?checks?|(?:checked|read|looked at) (?:them |some )?by hand|manual(?:ly)? \w+"
        r"|(?:answers?|samples?|outputs?) (?:are|look) (?:all )?(?:wrong|incorrect|bad)"
        r"|(?:answers?|outputs?) (?:aren't|are not) \w+"
        r"|(?:verifier|judge|checker|sandbox|reward (?:model|server|service|function|worker))"
        r" (?:is |be |has |was )?(?:wrong|broken|dead|die[ds]?|down|crash\w*|killed)"
        r"|broken (?:sandbox|verifier|judge|checker)|missing verdicts?|which verifier"
        r"|are (?:the|their|those) answers? wrong|right answers? (?:\w+ ){0,3}scored"
        r"|correct (?:answers?|\w+) (?:\w+ ){0,3}scored"
        r"|(?:don't|do not|can't|cannot|hardly|not) (?:really )?(?:believe|trust)"
        r"|too good to be true|made up|fake"
        r"|gold answers? (?:\w+ ){0,4}(?:wrong|parsed)|looks? like a wrong answer",
        "人工(?:抽查|检查)|判错|误判|验证器.{0,4}(?:坏|错)",
    ),
    "reward_hacking": _words(
        r"reward[- ]hack(?:s|ed|ing)?|hack(?:s|ed|ing) (?:the |its |our )?reward"
        r"|gam(?:es|ed|ing) (?:the|my|our|its) (?:reward|verifier|judge|checker|grader)"
        r"|(?:is|are|am|was|were|be|being|been|getting) gamed|gaming"
        r"|hack(?:ing)? (?:detector|or not)|that are not real",
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
    "truncation": _words(r"truncat\w+|cut (?:off|short)|incomplete|unfinished", "截断|不完整"),
    "hang": _words(
        r"hangs?|hung|hanging|stuck|deadlock\w*|freezes|freezing|froze|nccl(?! error)|timed? ?out"
        rf"|{_RUN} {AUX}(?:stall(?:s|ed|ing)?|standing still|stands still|not (?:moving|advancing))"
        r"|^(?:and |it |then |suddenly |just )*stall(?:s|ed)"
        r"|(?:makes?|made|making) no (?:more )?steps?"
        r"|no (?:new|further|more) (?:steps?|logs?|output|rollouts?)"
        r"|stop(?:s|ped) (?:logging|making (?:steps|progress)|printing|responding)"
        r"|not responding|unresponsive|step counter (?:\w+ )?(?:stop\w*|stuck)",
        "卡住|挂起|卡死|死锁|超时",
    ),
    "slow": _words(
        r"(?<!learning )(?<!learning seems )(?<!learning is )(?<!learning gets )(?<!learns )"
        r"slow(?:er|s|ed)?|gpu (?:use|utili[sz]ation|util) (?:is|at) \S+|idle"
        r"|bottleneck|takes forever|dominated by|only one of \w+ gpus|gpus? show 0",
        "变慢|很慢|太慢|慢了|空闲|瓶颈|利用率低",
    ),
    "resume_worse": _words(
        r"(?:after|since) (?:the |a )?(?:resum\w+|restart\w*)|on resume|preempted|restarts"
        r"|resumed (?:\w+ )?run|progress on resume|when continuing from|resum(?:e|ed"
        r"|ing) (?:from|at|and|it)|restart(?:ed)? from",
        "恢复(?:训练)?后|续训|断点|重启后",
    ),
    "is_normal": _words(
        r"(?:is|are) (?:this|that|it|these|they) (?:normal|a problem|ok(?:ay)?"
        r"|expected|a bug)|acceptable"
        r"|normal or not|should (?:i|it|this|the) .{0,40}\b(?:not )?be"
        r"|or (?:is it )?just learning|is it normal|all ?right|is (?:this|that|it) a collapse"
        r"|anything(?: (?:odd|wrong|strange|weird|unusual|suspicious|bad|else))?(?=\s*(?:$|[?!.]))",
        "正常吗|正常么|是不是有问题|有没有问题|有问题吗|有什么问题|是否正常|正不正常|有(?:什么"
        "|没有)异常",
    ),
}

ALONE["asks"] = _words(
    r"which checkpoint|what should (?:i|we) (?:log|change|do)|which knob|what changed"
    r"|where do (?:i|we) look"
    r"|what (?:happened|did (?:i|we) freeze|was not restored)|is it (?:always )?(?:my|our"
    r"|the) (?:data|reward|\w+ rate)",
    "怎么办|怎么回事|哪个(?:检查点|断点)|为什么",
)

FALLBACK = ("hang", "reward_flat", "reward_drop", "reward_odd")
"""Said without a subject of their own: left out where the clause says more."""

SIGNALS: dict[str, str] = {
    **dict.fromkeys(
        ("reward_drop", "reward_flat", "reward_zero", "reward_rise", "reward_rise_eval_down"),
        "reward_mean",
    ),
    "reward_spike": "reward_mean",
    "kl_spike": "kl_ref",
    "entropy_spike": "entropy",
    "length_spike": "completion_length_mean",
    "loss_spike": "loss",
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
    "learning_slow": "reward_mean",
}
"""Canonical signal of a symptom; the rest have none."""

FINE = _words(
    r"fine|normal|healthy|ok(?:ay)?|well|good|great|right|same|as before|usual|stayed"
    r"|does(?: not|n't)"
    r"|config|settings?|broke|breaks|bad|begins?|began|from the start",
    "正常|没问题",
)
"""What a clause holds that complains of nothing, or of nothing in particular: "it broke at 66"."""
