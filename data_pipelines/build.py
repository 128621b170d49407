"""Fill a folder with one data set, as a stream: after any end, the next build goes on from there.

source -> stages -> split -> blocks -> (learn a tokenizer) -> encode -> shards -> references -> manifest -> verify
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import final

from data_pipelines.build_request import CODE_VERSION, BuildRequest
from data_pipelines.engines.engine import Engine
from data_pipelines.finish import references_of, write_verified
from data_pipelines.forecast import forecast
from data_pipelines.progress import tell
from data_pipelines.shard_filler import Changed, Filled, ShardFiller
from data_pipelines.source_pass import REMOVED
from data_pipelines.sources.columns import SHAPE
from data_pipelines.stages.split import HASH, TRAIN
from data_pipelines.work_folder import WorkFolder
from lmtrain.accounting.quantities import format_count
from lmtrain.data.manifest import Manifest
from lmtrain.errors import ConfigurationError, DataError

LEAST_OF_ASKED = 0.9  # of the held-out share; less is told, and so is
MOST_OF_ASKED = 2.0  # more of it, or
LEAST_TO_TRAIN = 0.5  # less of the rest


class ShortSource(DataError):
    """The source ended before the budget; its encoded part is kept."""


@final
@dataclass(frozen=True)
class Build:
    """One preparation, ready to run.

    `num_processes` None decides by cores and text; `allow_short` takes a source shorter than the budget;
    `sample_documents` estimate the budget's need beforehand; `references` has the held-out text compressed.
    """

    question: BuildRequest
    engine: Engine
    num_processes: int | None = None
    allow_short: bool = False
    sample_documents: int = 0
    references: bool = True

    def __call__(self, folder: Path) -> None:
        """Fill a folder, from where an earlier build of the same left it.

        Raises:
            DataError: No text, too little text, text changed meanwhile, or tokens that do not verify.
        """
        work = WorkFolder(folder)
        if work.is_done():
            work.finish()
            return
        try:
            self._build(work)
        except ShortSource:
            raise
        except (ConfigurationError, DataError):
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _build(self, work: WorkFolder) -> None:
        source = self.question.source
        source.check()
        tell(f"preparing {source.name}")
        if work.begin(self.question.fingerprint):
            tell(f"  going on with the work in {work.folder}")
        filled = self._fill(work)
        self._require_splits(filled)
        self._tell_shares(filled)
        self._require_budget(filled)
        write_verified(work.folder, self._manifest(work, filled))
        if source.fingerprint() != self.question.source_fingerprint:
            raise DataError(f"source {source.name} changed while it was prepared; run the same command again.")
        work.finish()

    def _fill(self, work: WorkFolder) -> Filled:
        fill = ShardFiller(self.question, self.engine, work, self.num_processes, lambda: self._print_forecast(work))
        try:
            return fill()
        except Changed as change:
            tell(f"  {change}: starting anew")
            work.clear()
            work.begin(self.question.fingerprint)
            return fill()

    def _print_forecast(self, work: WorkFolder) -> None:
        forecast(
            self.question,
            work.tokenizer(),
            num_documents=self.sample_documents,
            folder=work.folder,
            allow_short=self.allow_short,
        )

    def _manifest(self, work: WorkFolder, filled: Filled) -> Manifest:
        question = self.question
        dtype = question.settings.token_dtype
        tokenizer = work.tokenizer()
        return Manifest(
            name=question.source.name,
            dtype=dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            splits=filled.splits,
            references=references_of(work.folder, filled.splits, dtype=dtype, tokenizer=tokenizer)
            if self.references
            else {},
            source=question.source.name,
            source_fingerprint=question.source_fingerprint,
            code_version=CODE_VERSION,
            settings=question.settings_as_json(),
            dropped={reason: count for reason, count in sorted(filled.dropped.items()) if reason != REMOVED},
            repaired={reason: count for reason, count in filled.dropped.items() if reason == REMOVED},
        )

    def _require_splits(self, filled: Filled) -> None:
        missing = [split for split in self.question.settings.held_out.splits if split not in filled.splits]
        if not missing:
            return
        num_documents = sum(split.num_documents for split in filled.splits.values())
        if num_documents == 0:
            raise DataError(self._why_empty(filled))
        rule = f"none of {format_count(num_documents, 'document')} fell into the {missing[0]} split"
        if missing[0] == TRAIN:
            left_out = ", ".join(f"{count:,} {reason}" for reason, count in filled.dropped.items() if count)
            why = f" (left out: {left_out})" if left_out else ""
            raise DataError(f"{rule}{why}; give it more documents, or hold out less.")
        if self.question.settings.held_out.is_named:
            raise DataError(f"source.validation_paths: {rule}; name text that the stages keep.")
        msg = f"data.folder.{missing[0]}_fraction is too small: {rule}; nearest valid: {2 / num_documents:.1g}."
        raise DataError(msg)

    def _tell_shares(self, filled: Filled) -> None:
        asked, is_named = self.question.settings.held_out.fractions, self.question.settings.held_out.is_named
        text_bytes = max(sum(split.text_bytes for split in filled.splits.values()), 1)
        shares = {name: split.text_bytes / text_bytes for name, split in filled.splits.items()}
        held_out = [name for name in shares if name != TRAIN and not is_named]
        large = [name for name in held_out if shares[name] > MOST_OF_ASKED * asked[name]]
        for name in held_out:
            if name in large or shares[name] < LEAST_OF_ASKED * asked[name]:
                got = f"{shares[name]:.2%} of the text ({format_count(filled.splits[name].num_documents, 'document')})"
                fix = self._remedy() if name in large else ""
                tell(f"  the {name} split has {got}, where data.folder.{name}_fraction asks for {asked[name]:.2%}{fix}")
        if not is_named and not large and shares[TRAIN] < LEAST_TO_TRAIN * asked[TRAIN]:
            got = f"{shares[TRAIN]:.2%} of the text, where the fractions leave {asked[TRAIN]:.2%}"
            tell(f"  the {TRAIN} split has {got}{self._remedy()}")

    def _remedy(self) -> str:
        """Name other rules of the choice, as a hash puts equal parts and few large documents into one split."""
        settings, ways = self.question.settings, ["source.validation_paths names the validation text of source=files"]
        if settings.held_out.rule == HASH and settings.token_budget is None:
            ways.insert(0, "data.split=tail holds out the end of the text")
        return f"; {', or '.join(ways)}"

    def _why_empty(self, filled: Filled) -> str:
        reasons = ", ".join(
            f"{reason} ({count:,}{f', first: {filled.first[reason]}' if reason in filled.first else ''})"
            for reason, count in sorted(filled.dropped.items())
        )
        source = self.question.source
        has_turns = source.has_conversations and filled.dropped
        fix = f"correct its messages, {SHAPE}" if has_turns else "give it text, or ask less of cleaning"
        return f"source {source.name} gives no document: {reasons or 'it holds none'}; {fix}."

    def _require_budget(self, filled: Filled) -> None:
        budget, reached = self.question.settings.token_budget, filled.splits[TRAIN].num_tokens
        if budget is None or reached >= budget:
            return
        ended = f"source {self.question.source.name} ended after {reached:,} of the {budget:,} tokens to train on"
        if not self.allow_short:
            fix = "take it all with data.folder.allow_short=true, or ask for less"
            raise ShortSource(f"{ended} (budget.tokens, data.folder.token_budget); the encoded part is kept: {fix}.")
        tell(f"  {ended}: that is all there is")
