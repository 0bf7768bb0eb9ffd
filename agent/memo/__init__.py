"""The memo that a person reads: Markdown, and one self-contained HTML page."""

from firstbad.agent.memo.build import Memo, build_memo

__all__ = ["Memo", "build_memo"]
