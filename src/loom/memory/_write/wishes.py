"""Own words: which messages are standing instructions, and which look pasted.

A rule cannot know who wrote a sentence: the user, or the supplier whose mail the user pasted. So a standing instruction
is only accepted from a message that contains nothing else, and facts are not extracted from a message that looks
pasted. Both are decided from the text alone, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Final

from loom.memory._write.phrases import (
    LazyPattern,
)
from loom.text.fence import one_line

# Finds standing instructions by rules: what the assistant shall do always, never, or from now on.

INSTRUCTION: Final = "instruction"
"""The predicate of a claim whose object is an instruction, in the words of the text."""

_VERBS: Final = (
    "abbreviate add address adjust annotate answer apologise apologize append ask assume attach avoid be begin bold "
    "book break bring buy calculate call capitalise capitalize check cite clarify combine comment compare confirm "
    "contact convert copy cut define delete deploy describe discuss display document double-check email emphasise "
    "emphasize end estimate expand explain express flag format generate give greet group highlight illustrate "
    "include indent interrupt keep label leave link list maintain make mark mention message name note notify number "
    "offer omit order outline phone ping prefer prefix present print prioritise prioritize proofread provide push "
    "put quote rank read recommend refer remind rename repeat reply report respond return reveal round run save "
    "schedule send separate share shorten show sign simplify skip sort speak specify spell start state structure "
    "suggest summarise summarize support tag talk tell text track translate treat use verify wait wake warn wrap "
    "write"
).replace(" ", "|")
_POLITE: Final = r"(?:(?:please|pls|plz|so|and|but|also|ok|okay|remember(?: to| that|:)?|note that),? )*+"
_TELLS: Final = r"(?:(?:you (?:should|must|need to|have to)|i(?:['\u2019]d| would)? (?:want|like|need) you to) )?"
_FROM_NOW: Final = r"(?:from now on|going forward|from here on|in (?:the )?future|(?:starting|as of) (?:now|today))"
_DONT: Final = r"(?:do not|don['\u2019]?t)"
_MANNERS: Final = (
    "using adding starting ending apologising apologizing calling emailing e-mailing texting messaging phoning "
    "contacting writing answering replying responding including mentioning suggesting recommending addressing "
    "translating sending greeting summarising summarizing quoting reminding correcting saying showing bringing"
).replace(" ", "|")
"""What an assistant can be told to stop for good: a manner. `Stop playing games` is said in anger, of one moment."""
_BUSY: Final = "writing answering replying responding sending saying showing translating quoting using adding".replace(
    " ", "|"
)
"""Manners that, with nothing behind them, are what the assistant is doing: `stop writing, that's enough`."""
_AT_HAND: Final = (
    r"\b(?! (?:\w+ )?(?:words?|phrases?|expressions?|emojis?|terms?|names?|nicknames?|tones?|"
    r"greetings?|formats?|styles?|abbreviations?|fonts?)\b)"
)
"""What is pointed at is there at the moment: `stop using that function`. A word or a tone is there each time."""
_WHENEVER: Final = (
    r"(?:(?:whenever|every time|each time|any ?time) i (?:ask|want|need|request|send|share|paste|mention|give|tell|"
    r"show|say|write|post|upload|forward)|(?:whenever|every time|each time|any ?time|when) you "
    rf"(?:{_VERBS})|when i ask)\b[^,;]{{0,80}}"
)
"""Each of many times, in the talk with the assistant. `When I send it` may be once."""
_ASKED: Final = r"(?=.*\b(?:please|pls|plz)\b)(?:can|could|would|will) you (?:please |pls |kindly )?"
"""Only with a `please`: `would you always use TypeScript?` asks what is best."""
_INSTRUCTION: Final = LazyPattern(
    rf"^{_POLITE}(?:"
    rf"{_ASKED}(?:always|never|{_FROM_NOW},?) (?:please |pls )?(?:{_VERBS})\b|"
    rf"{_WHENEVER}, {_POLITE}{_TELLS}(?:(?:always|never|{_DONT})(?: ever)? )?(?:{_VERBS})\b|"
    rf"(?:{_FROM_NOW},? {_POLITE})?{_TELLS}(?:always|never) (?:ever )?(?:{_VERBS})\b"
    rf"|{_FROM_NOW},? {_POLITE}{_TELLS}(?:{_DONT} |only )?(?:{_VERBS})\b"
    rf"|{_DONT} ever (?:{_VERBS})\b"
    r"|no (?!need\b)(?:[\w'-]+ ){1,5}(?:from now on|going forward|any ?more|ever again)$"
    rf"|{_TELLS}(?:{_DONT} )?(?:{_VERBS})\b.+ (?:from now on|going forward|any ?more|ever again)$"
    rf"|{_DONT} (?:{_VERBS})\b.+(?:,| with me| to me) ever$"
    rf"|stop (?!(?:{_BUSY})(?:[,.;!]|$))(?:{_MANNERS})\b(?! (?:that|those|it|them){_AT_HAND})"
    r")",
    re.IGNORECASE,
)
_REQUEST: Final = LazyPattern(
    rf"{_POLITE}{_ASKED}(?:always|never|{_FROM_NOW},?) (?:please |pls )?(?:{_VERBS})\b[^?]*\?+", re.IGNORECASE
)
"""A question that is none: `Could you please always answer in French?`"""
_STATES_OWN: Final = LazyPattern(
    r"^(?:please )?(?:note|remember)(?: that|:)? (?!i(?:['\u2019]d| would)? \w+ you to\b)(?:i|my|we|our)\b",
    re.IGNORECASE,
)
"""A statement about the user, not an instruction: `note I prefer light mode from now on`."""
_JOINED: Final = LazyPattern(
    rf" ?(?:;|,(?: and| but)?| and| but) (?=(?:please )?(?:always|never|{_DONT} ever|stop)\b)", re.IGNORECASE
)
_WHEN: Final = LazyPattern(rf"{_POLITE}(?:{_FROM_NOW}|{_WHENEVER})", re.IGNORECASE)
"""The beginning of an instruction, which does not stand without what follows it: `From now on, always ...`"""
_LIMITED: Final = LazyPattern(
    r"[\"\u201c\u201d\u00ab\u00bb*]|\b(?:say never|(?<!even )if|unless|(?<!starting )(?<!as of )today|tonight|tomorrow|"
    r"for now|this time|once|here|the following|below|above|next|in (?:an?|\w+) (?:minutes?|hours?|days?)|said|says|"
    r"told|wrote)\b|\b(?:that|this|it)\W*$|, (?:he|she|they) \w+\W*$"
    rf"|\b(?:use|run|call|add|delete|send) (?:that|those){_AT_HAND}"
    r"|\bthis (?!(?:way|format|style|form|order|structure|pattern|tone|language|convention|layout|template)\b)\w"
    r"|(?<!from )(?<!starting )(?<!as of )\bnow\b|\b(?:immediately|already|asap|at once|straight away|right away|"
    r"sharp sharp|hurry|yourself|these"
    r"|just (?:give|send|show|do|get|list|tell|proceed|execute|go|chuck|make|say|answer))\b",
    re.IGNORECASE,
)
"""A quotation, a condition, or an order for the moment: not standing, or not certain enough."""
_PLAYED: Final = LazyPattern(
    r"\b(?:(?:the|in|as an?|your|my) character|first[- ]person|third[- ]person|role-?play\w*|persona|pretend|"
    r"act (?:as|like)|the (?:story|game|"
    r"scene|player|plot)|(?:speak|reply|respond|answer|talk|write) as (?!soon|much|many|if you)|dungeon master|"
    r"in-game)\b"
    r"|(?-i:\bYOU\b)",
    re.IGNORECASE,
)
"""Instructions for a part that is played, in a story or a game."""
_ENCOURAGES: Final = LazyPattern(
    r"\b(?:give (?:up|in)|be (?:there|yourself|kind|grateful|proud|careful|safe|true|strong|happy|ready|positive)|"
    r"make (?:us|me|my|"
    r"our|him|her|them|people|someone)|remind me of|bring (?:us|me|joy|a smile)|keep (?:going|moving|fighting|smiling)|"
    r"leave me|put a smile)\b",
    re.IGNORECASE,
)
"""What people tell each other, or say of something they love: `never give up`, `they always make me laugh`."""
_FORMAT: Final = LazyPattern(
    r"(?<=\w )(?:[\"\u201c](?![^\"\u201d\n]{0,60}\b(?:always|never|stop|ignore|from now|do not|don't|must)\b)"
    r"[^\"\u201c\u201d\n]{1,30}[\"\u201d]|(?-i:(?:MM|DD|YYYY|YY)(?:[/.-](?:MM|DD|YYYY|YY)){1,2}\b))",
    re.IGNORECASE,
)
"""A short quotation inside an instruction, or the form of a date: `"Month Day, Year"`, `MM/DD/YYYY`."""
_QUOTED_FORMAT: Final = "QuotedFormat"
_PERMISSION: Final = (
    r"(?:permissions?|confirmations?|confirming|approvals?|consent|authori[sz]ations?|reviews?|asking|checking|checks|"
    r"sign-?offs?|clearance|my (?:ok|okay|input|go-ahead|say)|telling me|verifying|prompting|prompts)"
)
_FILLERS: Final = (
    r"(?:(?:to|ever|for|me|again|my|your|any|the|an?|further|more|need|even|bother|bothering|all|seek|require|get|"
    r"await|"
    r"with|on|keep|these|such|user) ){0,4}?"
)
_DOING: Final = r"(?:(?:(?!to\b|be\b|hesitat|mind|fear|forget|refus|omit|skip|stop|avoid|fail)[\w-]+) ){1,3}"
_UNASKED: Final = LazyPattern(
    # without asking, but not: never book without asking
    rf"(?:\b(?P<never>never|don['\u2019]?t|do not)(?: ever)? {_DOING})?\bwithout (?:\w+ ){{0,3}}?{_PERMISSION}\b"
    # never ask, stop waiting for approval, skip the review
    rf"|\b(?:no need to|no more|never|don['\u2019]?t|do not|(?<!not )(?<!n['\u2019]t )(?<!ever )(?:stop|quit|skip|"
    rf"avoid|bypass|ignore|waive|drop|disable)) {_FILLERS}(?:ask|wait|waiting|confirm|check (?:with|back)|verify|"
    rf"prompt|{_PERMISSION})\b"
    # just execute, assume that I approve, auto-approve
    r"|\bjust (?:execute|proceed|go ahead|do (?:it|things|them)|act|run (?:it|them|commands)|approve|book it)\b"
    r"|\b(?:assume|treat|take) (?:\w+ ){0,4}?(?:approv\w+|consent|permission|agree\w*|yes|confirmed|authori[sz]ed)\b"
    r"|\bauto(?:matic(?:ally)?)?[- ]?(?:approv\w+|accept\w*|confirm\w*|execut\w*|run|proceed)\b"
    r"|\b(?:no|zero) (?:confirmations?|permissions?|approvals?|reviews?|questions asked)\b"
    r"|\bask (?:for )?forgiveness\b|\bact (?:on your own|autonomously|independently)\b"
    # the same in the other languages in which wishes are learned
    r"|\bohne (?:\w+ ){0,2}?(?:nachzufragen|zu fragen|r\u00fcckfrage|best\u00e4tigung|erlaubnis|pr\u00fcfung|freigabe)"
    r"|\b(?:nie|niemals|nicht) (?:\w+ ){0,3}?(?:nach)?(?:fragen|frag|frage|best\u00e4tigung|erlaubnis)\b"
    r"|\bfrage? (?:\w+ ){0,3}?(?:nie|niemals|nicht)\b|\bne (?:\w+ ){0,2}?demande"
    r"|\bsans (?:\w+ ){0,3}?(?:demander|confirmation|permission|autorisation|validation)"
    r"|\bsin (?:\w+ ){0,2}?(?:preguntar|confirmaci\u00f3n|permiso|aprobaci\u00f3n)"
    r"|\b(?:nunca|no) (?:\w+ ){0,2}?(?:preguntes?|pidas)"
    r"|\bsenza (?:\w+ ){0,2}?(?:chiedere|conferma|permesso)|\bnon (?:\w+ ){0,2}?chiedere"
    r"|(?:不(?:用|要|必|需要)?再?|无需)(?:问|询问|确认|批准|征求)"
    r"|直接(?:执行|去?做|删除|发送|付款|操作)"
    r"|(?:確認|許可|承認)(?:なし|せず|しないで|を取らず|は?不要)"
    r"|(?:聞か|尋ね)(?:ず|ないで)"
    r"|\bsem (?:\w+ ){0,2}?(?:perguntar|confirma\w+)|\bzonder (?:\w+ ){0,3}?(?:vragen|bevestiging|toestemming)",
    re.IGNORECASE,
)
"""Orders to act without asking; the group `never` takes the first kind back."""


_THANKS: Final = r"(?:many thanks|thanks|thank you|thx|cheers)(?: (?:a lot|so much|very much|again|in advance))?"
_WELL: Final = r"(?:ok|okay|great|perfect|good|nice|cool|alright|all right|sure|yes|yeah|sorry|got it|i see)"
_COURTESY: Final = rf"(?:(?:hi|hello|hey)(?: (?:there|again|assistant|bot))?|{_THANKS}|{_WELL}|please|by the way|btw)"
_IN_FRONT: Final = LazyPattern(rf"^(?:{_COURTESY}[,!.]? )++(?=\S)", re.IGNORECASE)
_BEHIND: Final = LazyPattern(rf",? {_THANKS}$|, please$", re.IGNORECASE)
_ONLY_COURTESY: Final = LazyPattern(rf"{_COURTESY}(?:,? {_COURTESY})*+", re.IGNORECASE)
PICTURES: Final = LazyPattern("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]+")
_ENDS: Final = " \t.!,;:()\u3002\uff01"


def instructions_in(sentence: str) -> Iterator[str]:
    """The standing instructions of one sentence, each in its own words.

    A clause behind one that is not an instruction has its subject there: `They cheer us up and always ...`.
    """
    bare = _without_formats(sentence)
    if not is_limited(bare):
        yield from (_with_formats(clause, sentence) for clause in takewhile(is_instruction, clauses_in(bare)))


def acts_unasked(text: str) -> bool:
    """Whether an instruction is to act without asking: without permission, confirmation or review."""
    return any(found["never"] is None for found in _UNASKED.finditer(text))


def _without_formats(text: str) -> str:
    """A text with a name in place of each short quotation."""
    return _FORMAT.sub(_QUOTED_FORMAT, text)


def _with_formats(clause: str, text: str) -> str:
    """A clause of _without_formats(text), in the words of the text."""
    for found in _FORMAT.finditer(text):
        clause = clause.replace(_QUOTED_FORMAT, found[0], 1)
    return clause


def clauses_in(sentence: str) -> Iterator[str]:
    """The clauses of a sentence to the assistant, without courtesies."""
    bare = " ".join(PICTURES.sub(" ", sentence).split()).strip(_ENDS)
    if _ONLY_COURTESY.fullmatch(bare):
        return
    bare = _BEHIND.sub("", bare)
    clauses = _JOINED.split(bare if _INSTRUCTION.match(bare) else _IN_FRONT.sub("", bare))
    if len(clauses) > 1 and _WHEN.fullmatch(clauses[0]):
        clauses[:2] = [f"{clauses[0]}, {clauses[1]}"]
    for clause in clauses:
        if plain := clause.strip(_ENDS):
            yield plain


def is_instruction(clause: str) -> bool:
    """Whether a clause is an instruction for always, never, or from now on."""
    if is_limited(clause) or _PLAYED.search(clause) or _ENCOURAGES.search(clause) or _STATES_OWN.match(clause):
        return False
    return _INSTRUCTION.match(clause) is not None


def is_limited(sentence: str) -> bool:
    """Whether a sentence is a question, a quotation, a condition or a one-time request."""
    is_asked = "?" in sentence and _REQUEST.fullmatch(sentence.strip()) is None
    return is_asked or _LIMITED.search(sentence) is not None


LONGEST_WISH: Final = 300
"""Maximum characters of a message that consists of instructions only."""
_LONGEST_TYPED: Final = 2_000
"""A longer message counts as pasted, whatever it looks like."""
_MOST_WORDS: Final = 25
"""Maximum words of one clause of an instruction."""
_LINE: Final = r"^[ \t]*+"


def _any(*forms: str) -> LazyPattern:
    return LazyPattern("|".join(forms), re.IGNORECASE | re.MULTILINE)


_MAIL: Final = _any(
    rf"{_LINE}(?:from|to|cc|bcc|subject|sent|date|reply-to|message-id|received|fwd?|re|aw|wg|tr)[ \t]?:",
    rf"{_LINE}(?:von|an|betreff|gesendet|datum|de|\u00e0|objet|envoy\u00e9|para|asunto|assunto|da|oggetto)[ \t]?:",
    r"(?<!-)-{2,}+[ \t]*+(?:original|forwarded|urspr\u00fcngliche|weitergeleitete|message)",
    r"\b(?:original|forwarded) (?:message|mail|email)\b|\bbegin forwarded\b",
    rf"{_LINE}(?:on|am|le|el|il|em|op)\b.{{4,150}}\b(?:wrote|schrieb|\u00e9crit|escribi\u00f3|ha scritto|escreveu)\b",
    r"<[^<>\s@]{1,100}@[^<>\s]{1,100}>",
    rf"{_LINE}-- ?$",
    rf"{_LINE}[-\u2013\u2014~][ \t]?[A-Z][\w.]{{1,30}}(?: [A-Z][\w.]{{1,30}})?[ \t]*$",
    r"\bsent from my\b|\bvon meinem \w+ gesendet\b|\benvoy\u00e9 de mon\b",
)
_LETTER: Final = _any(
    rf"{_LINE}(?:dear|to whom|sehr geehrte|estimad[oa]|prezad[oa]|geachte|gentile)\b",
    rf"{_LINE}(?:hi|hello|hey|greetings|good (?:morning|afternoon|evening|day)|hallo|guten tag|liebe[rs]?|bonjour"
    r"|ch[e\u00e8]re?|madame|monsieur|hola|querid[oa]|ciao|car[oa]|ol\u00e1|team|all)\b[^.!?\n]{0,40}[,:][ \t]*\n",
    rf"{_LINE}(?:(?:kind|kindest|best|warm|warmest|many) )?(?:regards|wishes)\b",
    rf"{_LINE}(?:yours|sincerely|respectfully|cordially|faithfully)\b",
    rf"{_LINE}(?:thanks|thank you|many thanks|cheers|best|love|greetings)[,.!]?[ \t]*\n[ \t]*"
    r"[A-Z][\w.-]{1,30}(?: [A-Z][\w.-]{1,30}){0,2}[ \t]*$",
    rf"{_LINE}(?:mit (?:freundlichen|besten)|(?:viele|liebe|sch\u00f6ne|beste) gr\u00fc\u00dfe|mfg|cordialement"
    r"|bien \u00e0|saludos|atentamente|un saludo|cordiali|distinti|atenciosamente|met vriendelijke|groeten)\b",
)
_RECORDED: Final = _any(
    rf"{_LINE}[\[(<]?\d{{4}}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}}",
    rf"{_LINE}[\[(<]?\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}},? \d{{1,2}}:\d{{2}}",
    rf"{_LINE}[\[(<]?\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:[.,]\d{{1,6}})?(?: ?[ap]m)?[\])>]?[ \t:-]",
    rf"{_LINE}(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,? \d",
    rf"{_LINE}(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{{0,6}} {{1,2}}\d{{1,2}} \d\d:\d\d",
    rf"{_LINE}[\w.-]{{1,30}}(?: [\w.-]{{1,30}})?(?: APP| BOT)? {{1,3}}\d{{1,2}}:\d{{2}}(?: ?[AP]M)?[ \t]*$",
    rf"{_LINE}\d{{1,2}}:\d{{2}}[ \t]*$|\[\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}|{_LINE}from wikipedia\b",
    r"-->|[-\u2013\u2014] ?(?:today|yesterday) at \d",
    r"(?-i:\b(?:INFO|WARN|WARNING|ERROR|DEBUG|TRACE|FATAL|CRITICAL|NOTICE|TODO|FIXME)\b)",
    r"\btraceback \(most recent|\bexception in thread\b|\w(?:error|exception):",
    r"\bfile \"[^\"\n]{1,200}\", line \d",
    rf"{_LINE}at [\w.$<>]{{1,200}}\(|{_LINE}<[\w .-]{{1,40}}>[ \t]",
)
_LABELLED: Final = LazyPattern(
    r"^[ \t]*+(?!(?:i|my|note|update|ps|fyi|btw|edit|question|also|remember|reminder|correction|one|two|three|another|"
    r"important|quick|small|ok|okay|hi|hello|well|sure|yes|no|about|for)\b)"
    r"[\w.@'-]{1,30}(?: [\w.@'()-]{1,30}){0,2}:[ \t]+\S",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins with a speaker or a label."""
_MARKUP: Final = _any(
    r"```|~~~|<!--|\{\{|\}\}|</?[a-z][^<>\n]{0,200}>|<\||\[/?inst\]|&(?:lt|gt|amp|nbsp|quot|#\d{1,5});",
    rf"{_LINE}[>|]|\|[ \t]*$|{_LINE}#{{1,6}} |{_LINE}([-*_=~+])(?:[ \t]?\1){{2,}}[ \t]*$",
    rf"{_LINE}(?:[-*+\u2022\u00b7\u25aa\u25cf\u2013\u2014]|\(?\d{{1,3}}[.)]|\(?[a-z]\)|\[[ x]\])[ \t]+\S",
    r"\"[\w .-]{1,60}\"\s{0,3}:|\A\s{0,20}[{\[]|[}\]]\s{0,20}\Z",
    rf"{_LINE}[\w-]{{1,40}}[ \t]?=[ \t]?\S|{_LINE}\[[\w .-]{{1,40}}\][ \t]*$",
    r"\*\*[^*\n]{1,100}\*\*|\\[a-z]{3,20}\{|!?\[[^\[\]\n]{1,100}\]\(",
    r"[;{}][ \t]*$|=>|==|!=|&&|\|\||\w\(\)|::",
    rf"{_LINE}(?:def|class|function|import|const|let|var|public|private|#include|select|insert into|create table|echo)"
    r"\b.*[(;=*{\"'<]",
    rf"{_LINE}(?://|/\*|#!|\$ |>>> |\w:\\|@@ |[+-]{{3}} |diff --git|commit [0-9a-f]{{7}})",
    r"\bhttp/\d|\bbegin:v|\bdtstart\b|\bcontent-type\b|https?://|\bwww\.\w",
)
_KINDS: Final = r"(?:e-?mail|mail|message|letter|note|text|sms|post|comment|ticket|page|article|reply|answer)"
_PLACES: Final = (
    r"(?:e-?mail|mail|website|site|page|logs?|ticket|chat|thread|channel|newsletter|docs?|document|manual|readme|wiki|"
    r"article|post|contract|terms|letter|transcript|report|pdf|scan)"
)
_POINTING: Final = _any(
    r"\bhere(?:['\u2019]s| is| are| comes)\b|\bas follows\b|\bthe following\b|\bsee (?:below|above|attached)\b",
    r"\bbelow\b[^.!?\n]{0,40}:",
    r"\b(?:got|get|received|found|saw|read|copied|pasted|forwarded|forwarding|attached) "
    rf"(?:(?:this|these|it from)\b|(?:the|an?|another) (?:\w+ )?{_KINDS}(?: from\b| that\b| saying\b|:))",
    rf"\b{_KINDS} (?:says|said|reads|states|i got|below|above)\b",
    rf"\bfrom (?:the|an?|my|our|his|her|their|this) (?:\w+ )?{_PLACES}\b",
    r"\b(?:think|make|opinion) (?:of|about|on) (?:this|it|that|these)\b",
    r"\bis (?:this|that|it) (?:an? )?(?:real |typical )?(?:legit\w*|spam|scam|phishing|fake|fraud|genuine|real|true|"
    r"correct|ok|safe|suspicious)\b",
    r"\b(?:summari[sz]e|translate|proofread|rewrite|rephrase|explain|review|check|fix|correct|shorten|reply to|"
    r"respond to|answer) (?:this|these|that|the following|it|below)\b",
    r"\b(?:wrote|writes|says|said|reads|states|stated|posted|replied|answered|texted|asked|announced)[ \t]?:",
    r":[ \t]*\n",
)
_FOOTER: Final = _any(
    r"\bunsubscribe\b|\bin (?:your|a) browser\b|\ball rights reserved\b|\u00a9|\(c\) \d{4}|\bprivacy policy\b",
    r"\bterms (?:of (?:service|use)|and conditions)\b|\bdo not reply\b|\bclick here\b|\bcookie policy\b|\bpowered by\b",
    rf"\bthis {_KINDS} (?:is|may be|and any)\b|\bsigned-off-by\b|\bco-authored-by\b",
    r"\b(?:ticket|case|issue|pr|order|invoice) ?(?:#|no\.? ?)\d",
    rf"{_LINE}(?:you are|act as|pretend|imagine you)\b",
    rf"{_LINE}(?:system|assistant|user|human|ai|bot|developer|instructions?)[ \t]?:",
    r"\bignore (?:all |any )?(?:previous|prior|above|earlier)\b|\bprevious instructions\b",
)
_QUOTED: Final = _any(
    r"[\"\u201c\u201e\u00ab\u300c][^\"\u201d\u00bb\u300d\n]{12,400}+[\"\u201d\u201c\u00bb\u300d]",
    r"(?<!\w)['\u2018\u201a](?:[^'\u2019\n]|(?<=\w)['\u2019](?=\w)){12,400}+['\u2019]",
)
_TITLE: Final = LazyPattern(
    r"(?<![\w\"'])(?P<mark>[\"'\u201c\u2018])(?:[A-Z0-9][\w'\u2019&:!-]*|of|the|and|in|on|a|an|for|to|with|by|at|"
    r"from|:|-)"
    r"(?:,? (?:[A-Z0-9][\w'\u2019&:!-]*|of|the|and|in|on|a|an|for|to|with|by|at|from|:|"
    r"-)){0,9}[,.!?]?(?:[\"'\u201d\u2019])(?!\w)"
)
"""The title of a book, a film or a song: quoted, with capitals."""
_PASTED: Final = (_MAIL, _LETTER, _RECORDED, _LABELLED, _MARKUP, _POINTING, _FOOTER, _QUOTED)

_OWN_SENTENCE: Final = LazyPattern(
    r"^(?:(?:hi|hello|hey|so|and|but|also|well|anyway|ok|okay|actually|oh|btw|by the way)[,!]? )?"
    r"(?:i|i['\u2019]\w+|my|we|we['\u2019]\w+|our|please|thanks|thank you|hi|hello|hey|always|never|from now on)\b"
    r"|^.*\?$",
    re.IGNORECASE,
)
_FOREIGN: Final = LazyPattern(
    r"[\"\u201c\u201d\u201e\u00ab\u00bb<>{}\[\]|\\=~^*_`@#$\u2022\u00b7\u2013\u2014\u2026()/]|\w\.\w|:(?!\d\d\b)"
    r"|\d(?:[ -]?\d){5}| [-+] |(?<!\w)'"
    r"|\b(?:we|us|ours?|wir|uns|unser\w*|nous|notre|nos|nuestr[oa]s?|nostr[oaie]|noss[oa]s?|ons|onze)\b",
    re.IGNORECASE,
)
"""What a plain instruction does not contain: quotes, addresses, account numbers, markup, and a `we`."""
_ALSO_SAYS: Final = LazyPattern(
    r"^(?:(?:bitte|por favor|per favore|s['\u2019]il (?:te|vous) pla[i\u00ee]t|alsjeblieft),? )?"
    r"(?:[\w'\u2019-]++,? ){0,4}(?:immer|nie|niemals|ab (?:jetzt|sofort)|von nun an|k\u00fcnftig|toujours|jamais"
    r"|d\u00e9sormais|dor\u00e9navant|\u00e0 partir de maintenant|siempre|nunca|a partir de ahora"
    r"|de ahora en adelante|sempre|mai|d['\u2019]ora in poi|a partir de agora|altijd|nooit|voortaan)"
    r"(?: [\w'\u2019-]+){1,12}",
    re.IGNORECASE,
)
"""A short instruction in another language: a word for always, never or from now on near its beginning."""
_TOLD_IN_OTHERS: Final = (
    # German
    "antworten? antworte schreibe? sprich rede benutze? nutze verwende gib nenne? duze sieze erkläre? zeige? "
    "zitiere begrüße? beginne beende vermeide fasse? rechne "
    # French
    "réponds répondez écris écrivez parlez? (?:n['\u2019])?utilisez? donnez? tutoie tutoyez vouvoie "
    "vouvoyez (?:appelle|appelez)[-\u2010]moi expliquez? citez? commencez? évitez? "
    # Spanish
    "responda responde respóndeme contesta conteste contéstame escribe escriba escríbeme habla háblame "
    "usa uses? utilices utiliza utilice tutéame llámame llames explica cita empieza evita traduce "
    # Italian
    "rispondi rispondimi scrivi scrivimi parla parlami usare utilizza dammi chiamami spiega inizia rispondere "
    # Portuguese
    "escreva fale use utilize chame-me explique cite comece "
    # Dutch
    "antwoord schrijf spreek gebruik geef noem vermijd"
).replace(" ", "|")
_ALWAYS_IN_OTHERS: Final = (
    r"(?:immer|nie(?:mals)?|ab (?:jetzt|sofort)|von nun an|künftig|toujours|jamais|désormais|dorénavant|"
    r"à partir de maintenant|siempre|nunca|a partir de ahora|de ahora en adelante|sempre|mai|d['\u2019]ora in poi|"
    r"a partir de agora|altijd|nooit|voortaan)"
)
_ORDERS_IN_OTHERS: Final = LazyPattern(
    r"^(?:(?:bitte|por favor|per favore|s['\u2019]il (?:te|vous) pla[iî]t|alsjeblieft),? )?"
    rf"(?:{_ALWAYS_IN_OTHERS},? (?:bitte |por favor )?)?(?:(?:ne|non|no|não) )?(?:(?:me|mi|te|m['\u2019]) ?)?"
    rf"(?:{_TOLD_IN_OTHERS})\b"
    # Chinese and Japanese: the wish is in the form, and what is wished for is how to answer.
    r"|^请?(?:以后|今后|从现在(?:起|开始))(?:都|请|始终)*(?:用|使用|叫我|称呼我)"
    r"|^请你?(?:一直|总是|始终|永远)都?(?:用|使用|叫我|称呼我)"
    r"|^(?:いつも|必ず|常に|(?:今後|これから)(?:は|も)?)"
    r"[^\u3002\u3001?\uff1f]{1,40}(?:(?:答え|回答し|返信し|書い|話し|使っ)て|呼んで|使わないで)ください$",
    re.IGNORECASE,
)
"""An order to the assistant in another language; `_ALSO_SAYS` alone is as true of `Nie im Leben`."""
_LANGUAGES_IN_OTHERS: Final = {
    name: language
    for language, names in {
        "german": "deutsch allemand alemán tedesco alemão duits 德语 ドイツ語",
        "english": "englisch anglais inglés inglese inglês engels 英语 英文 英語",
        "french": "französisch français francés francese francês frans 法语",
        "spanish": "spanisch espagnol español spagnolo espanhol spaans 西班牙语",
        "italian": "italienisch italien italiano italiaans 意大利语",
        "portuguese": "portugiesisch portugais portugués portoghese português portugees",
        "dutch": "niederländisch néerlandais neerlandés olandese holandês nederlands",
        "chinese": "chinesisch chinois chino cinese chinês chinees 中文 汉语 中国語",
        "japanese": "japanisch japonais japonés giapponese japonês japans 日语 日文 日本語",
    }.items()
    for name in names.split()
}
_IN_LANGUAGE: Final = LazyPattern(
    r"(?:\b(?:auf|en|in|em|in het) |用|いつも|必ず|常に|は)"
    rf"(?P<language>{'|'.join(_LANGUAGES_IN_OTHERS)})(?!\w*[a-z])",
    re.IGNORECASE,
)
_OF_ANSWERS: Final = LazyPattern(
    # who is addressed how
    r"(?<!\w)(?:duze|sieze|nenne?|tutoie|tutoyez|vouvoie|vouvoyez|(?:appelle|appelez)[-\u2010]moi|tutéame|llámame|llames|"
    r"chiamami|chame-me|noem)(?!\w)"
    # how an answer looks
    r"|emoji|smiley|emoticon|métri|metri[sc]|imperial|celsius|fahrenheit|(?<!\w)(?:kurz|knapp|kürzer|ausführlich|förmlich|"
    r"formell|höflich|quellen|stichpunkten?|aufzählungen|das sie|das du|brièvement|court|concis|détaillé|sources|puces|"
    r"exemples|breve|brevemente|corto|conciso|concisa|detallado|fuentes|viñetas|ejemplos|fonti|elenchi|esempi|fontes|"
    r"exemplos|kort|bondig|bronnen|voorbeelden)(?!\w)"
    r"|称呼我|请叫我|简短|简洁|表情|公制|列表|要点|短く|簡潔|絵文字|敬語|箇条書き",
    re.IGNORECASE,
)
"""What a wish for all answers is about. `Usa siempre el cinturón` is said to anybody."""
_NEVER_IN_OTHERS: Final = LazyPattern(r"(?<!\w)(?:nie(?:mals)?|jamais|nunca|mai|nooit)(?!\w)|不|ないで", re.IGNORECASE)
_ALWAYS_WORD: Final = LazyPattern(rf"(?<!\w){_ALWAYS_IN_OTHERS}(?!\w)", re.IGNORECASE)
_FOR_NOW_IN_OTHERS: Final = LazyPattern(
    # Behind a comma that is followed by no courtesy, somebody else may be quoted.
    r",(?! ?(?:bitte|por favor|per favore|s['\u2019]il|alsjeblieft|danke|merci|gracias|grazie|obrigad[oa]|bedankt))"
    r"|^gib .* auf$|(?<!\w)(?:nie(?:mals)? (?:wieder|mehr)|heute|diesmal|morgen|wenn|falls|bis|"
    r"aujourd['\u2019]hui|cette fois|demain|si|quand|hoy|esta vez|mañana|cuando|oggi|questa volta|domani|se|hoje|"
    r"amanhã|vandaag|deze keer|als|tot)(?!\w)"
    r"|这次|今天|暂时|如果|今回|今日|とき|場合",
    re.IGNORECASE,
)
_SENTENCE_END: Final = LazyPattern(
    r"(?<=[.!?])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bMrs\.)(?<!\bSt\.)(?<!\bProf\.)\s+"
)


def wishes_in(text: str) -> tuple[str, ...]:
    """The instructions of a message that contains nothing else, in its own words; empty for any other message.

    It may take others back.
    """
    message = text.strip()
    bare = _without_formats(message)
    if len(message) > LONGEST_WISH or len(message.splitlines()) > 1 or looks_pasted(bare):
        return ()
    found: list[str] = []
    for sentence in _SENTENCE_END.split(bare):
        for clause in clauses_in(sentence):
            if _released(clause) is not None:
                continue
            if is_limited(sentence) or not _is_wish(clause):
                return ()
            found.append(_with_formats(clause, message))
    return tuple(found)


_OVER: Final = r"(?: (?:any ?more|any longer|again|now))*"
_RELEASES: Final = tuple(
    (LazyPattern(pattern, re.IGNORECASE), form)
    for pattern, form in (
        (r"no more (?P<what>[\w' -]+)", "use {}"),
        (rf"(?:there(?:['\u2019]s| is) )?no need for (?P<what>.{{1,200}}?){_OVER}", "use {}"),
        (rf"you (?:don['\u2019]t|do not|no longer) (?:need|have) to (?P<what>.{{1,200}}?){_OVER}", "{}"),
        (rf"(?:(?:there(?:['\u2019]s| is) )?no need to|you (?:can|may) stop) (?P<what>.{{1,200}}?){_OVER}", "{}"),
        (r"(?:you (?:can|may)|feel free to) (?P<what>(?!stop\b).{1,200}?) (?:again|now)", "never {}"),
        (r"(?:it(?:['\u2019]s| is) )?(?:ok|okay|fine|all ?right) to (?P<what>.{1,200}?) (?:again|now)", "never {}"),
    )
)
"""What takes an instruction back, and the instruction that is over: a demand, or with `never` a prohibition."""


def releases_in(text: str) -> tuple[str, ...]:
    """The instructions that a message takes back, if it contains nothing else but these and instructions.

    One that lets the assistant act without asking takes nothing back: that needs more than a sentence.
    """
    message = text.strip()
    if len(message) > LONGEST_WISH or "\n" in message or "?" in message:
        return ()
    clauses = [(sentence, clause) for sentence in _SENTENCE_END.split(message) for clause in clauses_in(sentence)]
    found = [_released(clause) for _, clause in clauses]
    if not any(found) or looks_pasted(message) or acts_unasked(message):
        return ()
    others = [pair for pair, released in zip(clauses, found, strict=True) if released is None]
    is_only = not any(is_limited(sentence) or not _is_wish(clause) for sentence, clause in others)
    return tuple(released for released in found if released) if is_only else ()


def _released(clause: str) -> str | None:
    if len(clause.split()) > _MOST_WORDS or is_instruction(clause):
        return None
    matches = ((pattern.fullmatch(clause), form) for pattern, form in _RELEASES)
    return next((form.format(found["what"]) for found, form in matches if found), None)


def looks_pasted(text: str) -> bool:
    """Whether a message has a form that people do not type: a letter, a log, a quotation, a table, a page, code.

    A short pasted text that looks like any sentence is not detected.
    """
    untitled = _TITLE.sub("", text)
    if len(text) > _LONGEST_TYPED or any(pattern.search(untitled) for pattern in _PASTED):
        return True
    return one_line(text) != " ".join(text.split()) or _is_table(text) or _has_foreign_paragraph(text)


def _is_wish(clause: str) -> bool:
    if len(clause.split()) > _MOST_WORDS or _FOREIGN.search(clause):
        return False
    return is_instruction(clause) or _ALSO_SAYS.fullmatch(clause) is not None or _is_order_in_another(clause)


def _is_order_in_another(clause: str) -> bool:
    """Whether a clause is an order for always, never or from now on, in another language than English."""
    if _ORDERS_IN_OTHERS.match(clause) is None or _FOR_NOW_IN_OTHERS.search(clause):
        return False
    if not (_OF_ANSWERS.search(clause) or _IN_LANGUAGE.search(clause)):
        return False
    is_spaced = clause[-1] < "\u2fff"
    return not is_spaced or (len(clause.split()) > 2 and _ALWAYS_WORD.search(clause) is not None)


def orders_in_others(text: str) -> tuple[str, ...]:
    """The instructions of a message that contains nothing else, in other languages than English."""
    return tuple(clause for clause in wishes_in(text) if not is_instruction(clause) and _is_order_in_another(clause))


def language_ordered(text: str) -> str | None:
    """The language, by its English name, that an order in another language asks for."""
    is_demand = _is_order_in_another(text) and not _NEVER_IN_OTHERS.search(text)
    found = _IN_LANGUAGE.search(text) if is_demand else None
    return _LANGUAGES_IN_OTHERS[found["language"].casefold()] if found else None


def _is_table(text: str) -> bool:
    """Whether two consecutive lines have the same number of separators, two or more."""
    lines = [line for line in text.splitlines() if line.strip()]
    return any(one.count(mark) == other.count(mark) >= 2 for one, other in pairwise(lines) for mark in ",;\t|")


def _has_foreign_paragraph(text: str) -> bool:
    """Whether a message of several paragraphs contains a sentence that is neither a question nor about the user."""
    paragraphs = [part for part in re.split(r"\n[ \t]*\n", text) if part.strip()]
    return len(paragraphs) > 1 and not all(_OWN_SENTENCE.match(sentence) for sentence in _sentences(paragraphs))


def _sentences(paragraphs: list[str]) -> Iterator[str]:
    lines = (line.strip() for paragraph in paragraphs for line in paragraph.splitlines())
    return (sentence for line in lines for sentence in _SENTENCE_END.split(line))
