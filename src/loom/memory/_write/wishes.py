"""Own words: which messages are standing instructions or look pasted, which clauses state something or take it back.

A rule cannot know who wrote a sentence: the user, or the supplier whose mail the user pasted. So a standing instruction
is only accepted from a message that contains nothing else, and facts are not extracted from a message that looks
pasted. Both are decided from the text alone, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from loom.memory._write.phrases import (
    AM,
    DIET,
    HAVE,
    JOB,
    NAME,
    NOW,
    PERSON,
    PET,
    PLACE,
    RELATION,
    SELF,
    TAIL,
    THING,
    WE,
    LazyPattern,
    opening_of,
)
from loom.text.fence import one_line
from loom.text.time_words import PAST

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
_POLITE: Final = r"(?:(?:please|so|and|but|also|ok|okay|remember(?: to| that|:)?|note that),? )*+"
_TELLS: Final = r"(?:(?:you (?:should|must|need to|have to)|i(?:['\u2019]d| would)? (?:want|like|need) you to) )?"
_FROM_NOW: Final = r"(?:from now on|going forward|from here on|in (?:the )?future)"
_DONT: Final = r"(?:do not|don['\u2019]t)"
_MANNERS: Final = (
    "using adding starting ending apologising apologizing calling emailing e-mailing texting messaging phoning "
    "contacting writing answering replying responding including mentioning suggesting recommending addressing "
    "translating sending greeting summarising summarizing quoting reminding correcting saying showing bringing"
).replace(" ", "|")
"""What an assistant can be told to stop for good: a manner. `Stop playing games` is said in anger, of one moment."""
_INSTRUCTION: Final = LazyPattern(
    rf"^{_POLITE}(?:"
    rf"(?:{_FROM_NOW},? {_POLITE})?{_TELLS}(?:always|never) (?:ever )?(?:{_VERBS})\b"
    rf"|{_FROM_NOW},? {_POLITE}{_TELLS}(?:{_DONT} )?(?:{_VERBS})\b"
    rf"|{_DONT} ever (?:{_VERBS})\b"
    r"|no (?!need\b)(?:[\w'-]+ ){1,5}(?:from now on|going forward|any ?more|ever again)$"
    rf"|(?:{_DONT} )?(?:{_VERBS})\b.+ (?:from now on|going forward|any ?more|ever again)$"
    rf"|stop (?:{_MANNERS})\b"
    r")",
    re.IGNORECASE,
)
_STATES_OWN: Final = LazyPattern(
    r"^(?:please )?(?:note|remember)(?: that|:)? (?!i(?:['\u2019]d| would)? \w+ you to\b)(?:i|my|we|our)\b",
    re.IGNORECASE,
)
"""A statement about the user, not an instruction: `note I prefer light mode from now on`."""
_JOINED: Final = LazyPattern(
    rf" ?(?:;|,(?: and| but)?| and| but) (?=(?:please )?(?:always|never|{_DONT} ever|stop)\b)", re.IGNORECASE
)
_LIMITED: Final = LazyPattern(
    r"\?|[\"\u201c\u201d\u00ab\u00bb*]|\b(?:say never|if|unless|today|tonight|tomorrow|for now|this time|once|"
    r"here|the following|below|above|next|this (?:one|text|email|message|function|file|question)|said|says"
    r"|told|wrote)\b|\b(?:that|this|it)\W*$"
    r"|(?<!from )\bnow\b|\b(?:immediately|already|asap|at once|straight away|right away|sharp sharp|hurry|yourself|"
    r"these"
    r"|just (?:give|send|show|do|get|list|tell|proceed|execute|go|chuck|make|say|answer)"
    r"|(?:in|for|of|during) this (?:chat|conversation|session|story|game|project|trip|task|case|test|exercise|scene|"
    r"part))\b",
    re.IGNORECASE,
)
"""A question, a quotation, a condition, or an order for the moment: not standing, or not certain enough."""
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
    # the same in the other languages in which wishes are learnt
    r"|\bohne (?:\w+ ){0,2}?(?:nachzufragen|zu fragen|r\u00fcckfrage|best\u00e4tigung|erlaubnis|pr\u00fcfung|freigabe)"
    r"|\b(?:nie|niemals|nicht) (?:\w+ ){0,3}?(?:nach)?(?:fragen|frag|frage|best\u00e4tigung|erlaubnis)\b"
    r"|\bfrage? (?:\w+ ){0,3}?(?:nie|niemals|nicht)\b|\bne (?:\w+ ){0,2}?demande"
    r"|\bsans (?:\w+ ){0,3}?(?:demander|confirmation|permission|autorisation|validation)"
    r"|\bsin (?:\w+ ){0,2}?(?:preguntar|confirmaci\u00f3n|permiso|aprobaci\u00f3n)"
    r"|\b(?:nunca|no) (?:\w+ ){0,2}?(?:preguntes?|pidas)"
    r"|\bsenza (?:\w+ ){0,2}?(?:chiedere|conferma|permesso)|\bnon (?:\w+ ){0,2}?chiedere"
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
_PICTURES: Final = LazyPattern("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]+")
_ENDS: Final = " \t.!,;:()"


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
    bare = " ".join(_PICTURES.sub(" ", sentence).split()).strip(_ENDS)
    if _ONLY_COURTESY.fullmatch(bare):
        return
    bare = _BEHIND.sub("", bare)
    for clause in _JOINED.split(bare if _INSTRUCTION.match(bare) else _IN_FRONT.sub("", bare)):
        if plain := clause.strip(_ENDS):
            yield plain


def is_instruction(clause: str) -> bool:
    """Whether a clause is an instruction for always, never, or from now on."""
    if is_limited(clause) or _PLAYED.search(clause) or _ENCOURAGES.search(clause) or _STATES_OWN.match(clause):
        return False
    return _INSTRUCTION.match(clause) is not None


def is_limited(sentence: str) -> bool:
    """Whether a sentence is a question, a quotation, a condition or a one-time request."""
    return _LIMITED.search(sentence) is not None


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
    r"\bis (?:this|that|it) (?:legit|spam|real|true|correct|ok)\b",
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
    r"(?<!\w)['\u2018\u201a][^'\u2019\n]{12,400}+['\u2019]",
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
_SENTENCE_END: Final = LazyPattern(r"(?<=[.!?])\s+")


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
    return is_instruction(clause) or _ALSO_SAYS.fullmatch(clause) is not None


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


# Statements: which clauses of a sentence the user states.

_WHEN_APART: Final = LazyPattern(rf"^(?P<when>{PAST}), (?=[Ii]\b)")

_REPORTED: Final = LazyPattern(
    r"\b(?:wish|imagine|imagining|suppose|supposing|pretend|hypothetically|said|says|saying|used to say|tells|thinks|"
    r"believes|claims|claimed|dreamed|dreamt|role-?play|quote|e\.g|lyrics|joke|joking|kidding|as though|as if|"
    r"let['\u2019]s say|"
    r"(?:in|for|of) (?:my|the|an?|our|this|that|his|her) (?:\w+ )?(?:story|novel|film|movie|game|dream|script|play)|"
    r"character)\b|[\"\u201c\u00ab][^\"\u201d\u00bb]*\b(?:I|my|My|me)\b|(?<!\w)'(?:[^']*\b)?(?:I|my|My)\b[^']*'(?!\w)",
    re.IGNORECASE,
)
"""Nothing in such a sentence is stated: it is reported, made up, quoted or a joke."""
_DOUBTED: Final = LazyPattern(
    r"[\"\u201c\u201d\u00ab\u00bb]|(?<!\w)'[^']+'(?!\w)|\b(?:if|unless|told|(?<!second )thought|asked|heard|"
    r"for example|"
    r"for instance|whether|once|why|how)\b",
    re.IGNORECASE,
)
"""A clause that does not state what it says, and neither do the clauses behind it."""
_ASKS: Final = LazyPattern(
    r"(?:(?:so|and|but|then|also),? )?(?:please |maybe |do you know )?(?:can|could|would|will|do|does|did|is|are|was|"
    r"were|should|"
    r"shall|have you|has|what|what['\u2019]s|whats|how|which|where|when|who|why|any|got any|know any|know of|may i|"
    r"am i)\b",
    re.IGNORECASE,
)
_WONDERS: Final = LazyPattern(
    r"\b(?:not sure|unsure|wonder\w*|don['\u2019]?t know|curious|if|whether)\b",
    re.IGNORECASE,
)
_GIVES_A_REASON: Final = LazyPattern(r"(?:since|because|as|given(?: that)?|considering(?: that)?) (?:I|i)\b")
_ROLE_PLAY: Final = LazyPattern(
    r"\b(?:you are (?:an?|now|my|the|going to be)\b|act as\b|act like\b|acting as\b|pretend|role-?play|language model|"
    r"in character\b|as the character|your name is|you will be\b|persona\b|let['\u2019]?s play\b|dungeon|npc\b|"
    r"fanfic|screenplay|monologue|chapter \d|cover letter|write an? |script\b|essay\b|prompt\b|fellow (?:ai|language|"
    r"bot))",
    re.IGNORECASE,
)
"""A message in which the `I` may be a part that the user plays, or a text that is to be written."""

_TEXT_WORK: Final = LazyPattern(
    r"^\W*(?:please |can you |could you )*(?:translate|rewrite|proofread|correct|paraphrase|summari[sz]e|edit|"
    r"write(?! down)|"
    r"draft|complete|continue|rephrase|improve|act as|respond as|answer as|you are|here is|here's|this is)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = LazyPattern(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bSt\.)(?<!\bMrs\.)\s+|\n+")
_STARTS: Final = (
    r"(?:now )?(?:I|i|im|Im|ive|not|my|My|our|we|We|it|they|he|she|this|that|these|those|there|you|can|could|would|"
    r"will|do|does|is|are|what|how|which|where|who|any|please|should|have you|especially|particularly|like|such as|"
    r"though|although|even|then|maybe|"
    r"hopefully|right|thanks|just)(?:['\u2019]\w+)?\b"
)
_CLAUSE: Final = LazyPattern(
    rf"(?<!\s)\s*(?:[;:\u2014\u2013]|,(?: and| but| so)?| and| but| so)\s+(?={_STARTS})"
    r"|\s[-\u2013\u2014]\s|(?<!,)\s(?=(?:which|because|although|though|while|when|whenever|where|except) |since (?:I|"
    r"i|my|we|it|they|he|she)\b)"
    r"|\s(?=(?:can|could|would) you |what (?:should|would|are|is|do) |any (?:tips|ideas|suggestions|recommendations|"
    r"advice)\b"
    r"|do you |how (?:do|can|should) i\b|how (?:do|can|should) I\b)|, (?=(?:since|because|as|given) (?:I|i)\b)"
)
_OPENING: Final = LazyPattern(
    r"^(?:(?:hi|hello|hey|well|so|and|but|oh|ok|okay|yes|yeah|actually|also|btw|by the way|fyi|just so you know|"
    r"as of (?:today|now)|now|these days|nowadays|(?:it )?turns out(?: that)?|on second thoughts?|correction:?|sorry|"
    r"(?:the|my) (?:doctor|tests?|results?) (?:confirmed|showed|found)(?: that)?|"
    r"(?:please )?(?:note|remember)(?: that(?= )|(?= (?:I|i|my)\b))|"
    r"(?:from now on|going forward)(?=,? (?:I|i|my)\b)|for context|for reference|anyway|lol|honestly|"
    r"speaking of which|yep|yup|nah|nope|haha|wow|thanks|thank you|mate|dude|(?:since|because|as|given(?: that)?|"
    r"considering(?: that)?|seeing as|even though|although|though|while)(?= (?:I|i|my)\b))[,!]? )+",
    re.IGNORECASE,
)
LONGEST_SENTENCE: Final = 300
"""Maximum characters of a sentence that is read; of a longer one, the whole clauses at its beginning."""


def is_text_work(text: str) -> bool:
    """Whether a message gives a text to be translated, corrected or written."""
    return _TEXT_WORK.search(text) is not None


def is_role_play(text: str) -> bool:
    """Whether the `I` of a message may be a part that the user plays, or that of a text to be written."""
    return _ROLE_PLAY.search(text) is not None


def is_reported(sentence: str) -> bool:
    """Whether a sentence reports, quotes or makes up what it says."""
    return _REPORTED.search(sentence) is not None


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text."""
    return (plain for sentence in _SENTENCE.split(text) if (plain := sentence.strip()))


def stated_clauses(plain: str) -> Iterator[str]:
    """The clauses of a sentence that state something: those in front of a question and of a doubt."""
    if _TEXT_WORK.search(plain) or _REPORTED.search(plain):
        return
    is_long = len(plain) > LONGEST_SENTENCE
    parts = [part for part in _CLAUSE.split(_WHEN_APART.sub(r"\g<when> ", plain[:LONGEST_SENTENCE])) if part.strip()]
    parts = parts[:-1] if is_long else parts
    if "?" in plain:
        asked = next((place for place, part in enumerate(parts) if _ASKS.match(part) or _WONDERS.search(part)), None)
        if asked is None and not is_long:
            return
        asked = len(parts) if asked is None else asked
        parts = [*parts[:asked], *(part.rstrip("? ") for part in parts[asked:] if _GIVES_A_REASON.match(part))]
    for part in parts:
        if _DOUBTED.search(part):
            return
        yield _OPENING.sub("", _PICTURES.sub("", part).strip(" \t.!?,;:()")).strip()


_NOT_SURE: Final = LazyPattern(
    r"\b(?:could|should|might|may be|maybe|perhaps|possibly|probably|hardly|barely|almost|nearly|allegedly|reportedly|"
    r"hope|hoping|want|wanted|consider|considering|thinking|someday|one day|guess|sometimes|temporarily)\b"
    r"|\bwould\b(?!(?: now)? rather )|\baccording to\b",
    re.IGNORECASE,
)
_NOT_SO: Final = LazyPattern(r"\b(?:never|not|n't)\b|n['\u2019]t\b", re.IGNORECASE)
_CHANGED: Final = LazyPattern(
    r"\b(?:now|actually|instead|these days|nowadays|lately|from now on|any ?more|no longer|changed my mind|switched|"
    r"on second thoughts?|correction|turns out|recently|just)\b",
    re.IGNORECASE,
)
"""Words that imply that something else was true before."""
_MADE_UP: Final = LazyPattern(
    r"\b(?:story|novel|character|hero|heroine|protagonist|plot|fiction\w*|fanfic\w*|film|movie|episode|chapter|scene|"
    r"poem|"
    r"write|writing|imagine|suppose|assume|pretend|scenario|riddle|puzzle|exercise|homework|quiz|maths?|example|"
    r"hypothetical\w*|role-?play|game|dnd|campaign|translate|article|headline|quote|sentence|grammar|test data)\b",
    re.IGNORECASE,
)
_LONGEST_OF_OTHERS: Final = 300
"""Maximum characters of a message whose statements about others are used: a longer one may be any text."""


def is_unsure(clause: str) -> bool:
    """Whether a clause says what may be, or shall be, and not what is."""
    return _NOT_SURE.search(clause) is not None


def is_denied(clause: str) -> bool:
    """Whether a clause contains a `not`."""
    return _NOT_SO.search(clause) is not None


def is_change(sentence: str) -> bool:
    """Whether a sentence implies that something else was true before."""
    return _CHANGED.search(sentence) is not None


def tells_of_others(text: str) -> bool:
    """Whether a message may state facts about others: short, one paragraph, and without signs of fiction."""
    return len(text) <= _LONGEST_OF_OTHERS and "\n" not in text.strip() and not _MADE_UP.search(text)


_ADJECTIVES: Final = (
    rf"(?:(?:not|no longer|still|also|severely) )?(?:allergic to |(?:vegan|vegetarian|pescatarian)\b|\w+[- ]intolerant|"
    rf"married to |based in |living in |working (?:at|for|as) |an? {JOB}\b|\d{{1,3}} years old|from [A-Z])"
)
_STATES: Final = (
    r"(?:(?:also|now|still|really) )?(?:live in |work (?:at|for|as) |speak [A-Z]|prefer |drive an? |own an? |"
    rf"have an? (?:{PET}|{RELATION.replace('?P<relation>', '?:')})\b|moved to |joined [A-Z]|"
    r"started (?:working )?(?:at|for) [A-Z]|was born in |use [A-Z]|"
    r"don['\u2019]t |no longer )"
)
_GOES_ON: Final = LazyPattern(
    rf"(?:,? and|,? but)(?: also)? (?:(?={_ADJECTIVES})|(?=(?P<does>{_STATES})))"
    rf"|, (?=working (?:at|for|as) |living in |based in |allergic to |\w+[- ]intolerant\b|married to |an? {JOB}\b)"
)
"""Where a second statement about the same person begins, whose `I` or `I'm` is omitted."""
_INTENDS: Final = LazyPattern(
    r"^(?:I|i|We|we)(?:['\u2019]ll|['\u2019]d| will| would| could| can| should| plan| want| think| need)\b"
)
_BEING: Final = LazyPattern(rf"^{AM} ")
_OWN: Final = LazyPattern(rf"^{WE}(?:['\u2019]\w+)? ")


def unfolded(clause: str) -> list[str]:
    """A clause about the speaker, split into one clause per statement."""
    if not _OWN.match(clause) or _INTENDS.match(clause):
        return [clause]
    parts: list[str] = []
    head, start = "", 0
    is_being = _BEING.match(clause) is not None
    for found in _GOES_ON.finditer(clause):
        if not (is_being or found["does"]):
            continue  # "I met Ann, a nurse" says nothing of the speaker
        parts.append(head + clause[start : found.start()])
        head, start = ("I " if found["does"] else "I'm "), found.end()
    return [*parts, head + clause[start:]]


# Finds retractions in a clause: denials, and phrases that say that something is over.
#
# A denial is turned into the plain statement that it denies ("I don't live in Rome anymore" into "I live in Rome"), so
# everything that the rules can learn can also be retracted.

_NOT: Final = (
    r"(?:not|no longer) (?!(?:only|just|yet|even|sure|really|necessarily|always|exactly|so|very|that"
    r"|(?:an? )?(?:strict|complete|full|full-time|total|pure|real|true|proper))\b)"
)
_BASE: Final = {
    **{f"{verb}ing": verb for verb in ("work", "speak", "enjoy", "learn")},
    **{f"{verb[:-1]}ing": verb for verb in ("live", "drive", "use", "like", "love", "hate")},
    "preferring": "prefer",
}
_REGULAR: Final = ("live", "work", "use", "like", "love", "prefer", "speak", "drive", "run", "hate", "depend")
_THIRD: Final = {**{verb: f"{verb}s" for verb in _REGULAR}, "have": "has"}
_STOPPED: Final = r"(?:(?:have |has |['\u2019](?:ve|s) )?(?:just |recently |now )?(?:stopped|quit|gave up|given up))"
_DENIALS: Final[tuple[tuple[LazyPattern, str], ...]] = (
    (LazyPattern(rf"^{AM}{NOW} {_NOT}(?P<rest>.+)$"), "I'm"),
    (LazyPattern(rf"^(?:I|i|We|we)(?: {_STOPPED}|['\u2019]ve stopped) being (?P<rest>.+)$"), "I'm"),
    (LazyPattern(r"^(?:[Pp]lease )?(?:[Ff]orget|[Ii]gnore|[Dd]isregard) that (?P<rest>(?:I|my)\b.+)$"), ""),
    (LazyPattern(r"^(?:I|i|We|we)(?: really)? (?:don['\u2019]t|do not|no longer) (?P<rest>.+)$"), "I"),
)
_STOPS_DOING: Final = LazyPattern(
    rf"^(?P<subject>(?:I|i|We|we)|{NAME}) {_STOPPED} (?P<verb>{'|'.join(_BASE)}) (?P<rest>.+)$"
)
_OTHER_IS_NOT: Final = LazyPattern(rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:isn['\u2019]t |is {_NOT})(?P<rest>.+)$")
_OTHER_DOES_NOT: Final = LazyPattern(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) (?:doesn['\u2019]t|does not) (?P<verb>{'|'.join(_THIRD)}) (?P<rest>.+)$"
)
_OTHER_NO_LONGER: Final = LazyPattern(
    rf"^(?P<subject>[\w'\u2019 .-]{{1,60}}?) no longer (?P<verb>{'|'.join(_THIRD.values())}) (?P<rest>.+)$"
)
_FIRM: Final = LazyPattern(
    r"\b(?:any ?more|any longer|no longer|stopped|quit|gave up|given up|after all|turns out)\b", re.IGNORECASE
)
"""Words that imply that something was true before; a bare `not` may only mean today."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The plain statement that a clause denies. `is_firm` if the clause also says that it was true before."""

    clause: str
    is_firm: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """What a clause says is over: this object under each of these predicates, or all objects if it is empty."""

    predicates: tuple[str, ...]
    object: str
    match: re.Match[str]


def denial_in(clause: str) -> Denial | None:
    """The plain statement that a clause denies, or None."""
    is_firm = _FIRM.search(clause) is not None
    for pattern, head in _DENIALS:
        if found := pattern.match(clause):
            return Denial(f"{head} {found['rest']}".strip(), is_firm)
    if found := _STOPS_DOING.match(clause):
        verb = _BASE[found["verb"]]
        is_own = found["subject"].casefold() in {"i", "we"}
        return Denial(f"{found['subject']} {verb if is_own else _THIRD.get(verb, verb)} {found['rest']}", is_firm)
    if found := _OTHER_IS_NOT.match(clause):
        return Denial(f"{found['subject']} is {found['rest']}", is_firm)
    if found := _OTHER_DOES_NOT.match(clause):
        return Denial(f"{found['subject']} {_THIRD[found['verb']]} {found['rest']}", is_firm)
    if found := _OTHER_NO_LONGER.match(clause):
        return Denial(f"{found['subject']} {found['verb']} {found['rest']}", is_firm)
    return None


def _form(predicates: str, pattern: str, *, tail: str = TAIL) -> tuple[tuple[str, ...], LazyPattern]:
    return tuple(predicates.split()), LazyPattern(f"^{pattern}{tail}", opening=opening_of(f"^{pattern}"))


_DID: Final = rf"(?:{WE}|{HAVE}){NOW}"
_TASTE: Final = "likes prefers uses"
_COUPLE: Final = r"(?:married|together|engaged|a couple)"
_FORMS: Final = (
    _form(
        "works_at", rf"{_DID} (?:left|quit|resigned from) (?:my (?:job|position|role) (?:at|with) )?(?P<object>{NAME})"
    ),
    _form("works_at", rf"{SELF} (?:was|got|have been) (?:fired|laid off|let go)(?: (?:from|by) (?P<object>{NAME}))?"),
    _form("works_at", rf"{_DID} (?:left|quit|lost) my job"),
    _form("works_at", rf"{AM}{NOW} (?:unemployed|between jobs|out of work|jobless)"),
    _form("works_at works_as", rf"(?:{AM}|{_DID}){NOW} retired"),
    _form("lives_in", rf"{_DID} moved (?:away from|out of) (?P<object>{PLACE})"),
    _form("lives_in", rf"{_DID} left (?P<object>{PLACE}) for good"),
    _form(
        "drives owns",
        rf"{_DID} (?:sold|gave away|got rid of|traded in|scrapped|totall?ed) (?:my|our|the) (?P<object>{THING})",
    ),
    _form("has_pet", rf"(?:[Mm]y|[Oo]ur) {PET},? (?P<object>{PERSON}),? (?:died|passed away|is dead)"),
    _form(
        "married_to partner girlfriend boyfriend engaged_to",
        rf"(?:{WE}|{PERSON} and I)(?: got| are|['\u2019]re)?(?: now)? "
        rf"(?:divorced|broke up|broken up|split up|separated)(?: with (?P<object>{PERSON}))?",
    ),
    _form("has_pet", rf"(?P<object>{PERSON}) (?:(?:has )?(?:died|passed away)|is dead|is no longer with us)"),
    _form(
        "married_to partner girlfriend boyfriend engaged_to",
        rf"(?:{WE}|{PERSON} and I)(?:(?: are|['\u2019]re) no longer {_COUPLE}"
        rf"|(?: are not| aren['\u2019]t|['\u2019]re not) {_COUPLE} (?:any ?more|any longer))",
    ),
    _form("diet", rf"(?:[Bb]eing|[Gg]oing) (?:an? )?{DIET} (?:didn['\u2019]t|did not) work(?: out)?(?: for me)?"),
    _form("married_to", rf"{AM}{NOW} (?:divorced|widowed)(?: from (?P<object>{PERSON}))?"),
    _form(_TASTE, rf"{AM}{NOW} (?:done|through|finished) with (?P<object>{THING})"),
    _form(_TASTE, rf"{_DID} (?:gone|went) off (?P<object>{THING})"),
    _form(
        _TASTE,
        rf"{_DID} (?:quit|gave up|given up|stopped)"
        rf"(?: on)?(?: (?:drinking|eating|using|wearing|playing|watching|reading|buying))? (?P<object>{THING})",
    ),
    _form(f"{_TASTE} drives", rf"{_DID} switched from (?P<object>{THING}) to {THING}"),
)
_HAS: Final = r"(?:has )?(?:just |recently )?"
_OF_OTHERS: Final = (
    _form("works_at", rf"{_HAS}(?:left|quit|resigned from) (?P<object>{NAME})"),
    _form("works_at", rf"(?:was|got|has been) (?:fired|laid off|let go)(?: (?:from|by) (?P<object>{NAME}))?"),
    _form("lives_in", rf"{_HAS}moved (?:(?:away from|out of) (?P<object>{PLACE})|from (?P<left>{PLACE}) to {PLACE})"),
    _form(
        "uses runs runs_on written_in built_with hosted_on",
        rf"{_HAS}(?:switched|migrated|moved) from (?P<object>{NAME}) to {NAME}",
    ),
)
_EATS: Final = LazyPattern(
    rf"^(?:{WE}(?: (?:now|actually|do|can))? eat"
    rf"|{_DID} (?:started|began|begun|resumed|went back to|gone back to) (?:eating|to eat)) "
    rf"(?P<object>meat|beef|chicken|pork|fish|seafood|dairy|cheese|eggs|gluten|bread){TAIL}"
)
_MEAT: Final = ("vegan", "vegetarian", "pescatarian")
_RULED_OUT: Final = {
    **dict.fromkeys(("meat", "beef", "chicken", "pork"), _MEAT),
    **dict.fromkeys(("fish", "seafood"), ("vegan", "vegetarian")),
    **dict.fromkeys(("dairy", "cheese", "eggs"), ("vegan",)),
    **dict.fromkeys(("gluten", "bread"), ("gluten-free", "gluten free")),
}
"""The diets that exclude a food."""


def endings_in(clause: str) -> Iterator[Ending]:
    """What is over for the speaker, according to a clause."""
    for predicates, pattern in _FORMS:
        if found := pattern.match(clause):
            yield Ending(predicates, found.groupdict().get("object") or "", found)
    if found := _EATS.match(clause):
        yield from (Ending(("diet",), diet, found) for diet in _RULED_OUT[found["object"]])
        yield Ending(("does_not_eat",), found["object"], found)


def endings_of(rest: str) -> Iterator[Ending]:
    """What is over for another person or thing, according to the rest of a clause that begins with it."""
    for predicates, pattern in _OF_OTHERS:
        if found := pattern.match(rest):
            groups = found.groupdict()
            yield Ending(predicates, groups.get("object") or groups.get("left") or "", found)
