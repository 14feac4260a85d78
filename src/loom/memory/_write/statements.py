"""Rules for plain statements: what people say of themselves, mention in passing, and say of others.

A rule matches one clause from its first word; a mention counts wherever it is in a sentence. How sentences are read
with them is in extract_rules.py, the phrases they are made of in phrases.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from loom.memory._write.phrases import (
    AM,
    ASIDE,
    CALLED,
    COUNT,
    COUNTRY,
    DAY,
    DEGREE,
    DIET,
    DO,
    DOCTOR,
    EVENT,
    EVERY,
    FAVOURED,
    FIELD,
    FIRM,
    FOOD,
    HAVE,
    HELPED,
    HOBBY,
    HOME,
    ILLNESS,
    INSTRUMENT,
    JOB,
    KIDS,
    LANGUAGE,
    LANGUAGES,
    LIST,
    MINE,
    MODEL,
    MUCH,
    NAME,
    NAMED,
    NEAR,
    NOW,
    OPEN,
    OPEN_END,
    PERSON,
    PET,
    PLACE,
    RELATION,
    ROUTINE,
    ROUTINELY,
    SELF,
    SOMETIME,
    SPORT,
    STUDY_SUBJECT,
    TAIL,
    THEN,
    THING,
    UNNAMED,
    WE,
    WORK,
    LazyPattern,
    Rule,
    mention,
    passing,
    relation_of,
    rule,
)
from loom.text.time_words import SOON

# What people state of themselves, each rule over one clause.

_CONDITION: Final = (
    r"(?:type [12] )?(?:celiac|coeliac|diabetic|asthmatic|epileptic|dyslexic|autistic|colou?r-?blind|an[a]?emic|"
    r"bipolar|h[a]?emophiliac|hard of hearing|deaf)"
)
_OWN_END: Final = r"(?=$|[,.;]| (?:and|so|but|since|because)\b)"
_TRAIT: Final = (
    r"(?:shoe|dress|ring|shirt|hat|glove|trouser|jeans) size|blood (?:type|group)|home airport|maiden name|middle name|"
    r"job title|star sign|zodiac sign"
)
_HOLDER: Final = rf"(?:{NAME}|(?:an?|my|our) (?:[\w-]+ ){{0,4}}(?:company|startup|start-up|business|agency|chain|firm))"

_NO_NAME: Final = (
    r"(?:(?!(?:Brian|Ian|Adrian|Sebastian|Bastian|Julian|Fabian|Florian|Damian|Dorian|Kilian|Killian|Cillian|Maximilian|"
    r"Vivian|Lilian|Lillian|Gillian|Jillian|Marian|Miriam|Ryan|Sean|Dean|Jean|Reese|Therese)\b)"
    r"\w*(?:ish|ese|ian|ean|ican|ist)\b"
    # What somebody is at the moment, with a capital by mistake: `I'm Confused`.
    r"|(?!(?:Fred|Alfred|Jared|Ned|Ted|Jed|Reed|Ahmed|Hamed|Khaled|Saeed|Waleed|Syed|Mo?u?hamm?ed|Winifred)\b)\w+ed\b"
    r"|\w{4,}ing\b|(?:Outside|Inside|Stuck|Lost|Afraid|Out|In|Off|On|Not|So|Just|Very|Really|Too|Still|Always|Never|"
    r"Lucky|Hungry|Broke|Sad|Glad|Mad|Angry|Cold|Hot|Away|Alone|Aware|Able|New|Old|Free|Full|Human|Deaf|Blind|Gay|"
    r"Straight|Pregnant|Allergic|Unable|Unsure|Certain|Open|Down|Up|Over|Dead|Alive|Awake|Asleep|Drunk|Sober)\b)"
)
"""What is not a name in `I'm Italian` and `I'm Stuck`: where somebody is from, what they believe, how they are."""

RULES: Final = (
    rule("lives_in", rf"(?P<object>{PLACE}) has been (?:my|our) home"),
    rule("works_at", rf"(?P<object>{NAME}) (?:hired me|offered me the job)"),
    passing(
        "name",
        r"(?:[Mm]y (?:real |full |first )?name(?:['\u2019]s| is)(?: actually| really| now)?|"
        rf"(?:You|you) can call me|(?:Please |please )?[Cc]all me) (?P<object>{NAME})",
    ),
    rule("name", rf"{AM} (?P<object>(?!{_NO_NAME})[A-Z][a-z\u00e0-\u00ff]+)", tail=r"(?:,? (?:btw|by the way|here))?$"),
    rule("name", rf"{AM} (?P<object>(?!{_NO_NAME})[A-Z][a-z\u00e0-\u00ff]+)", tail=r" from (?=[\w ]+$)"),
    rule("lives_in", rf"{WE}{NOW} live(?: here)? in (?P<object>{COUNTRY})", tail=HOME),
    rule("lives_in", rf"{AM}{NOW} (?:living|based) in (?P<object>{COUNTRY})", tail=HOME),
    passing("lives_in", rf"{HAVE} been living in (?P<object>{COUNTRY})"),
    rule("lives_in", rf"{HAVE} lived in (?P<object>{COUNTRY})", tail=rf"(?: for (?!an?\b)| since |{TAIL})"),
    rule(
        "lives_in",
        rf"(?:{WE}{NOW}|{HAVE}{NOW}) (?:moved|relocated)(?: back)? (?:from {NAME} )?to (?P<object>{COUNTRY})",
        tail=HOME,
    ),
    passing("lives_in", rf"{WE} used to live in (?P<object>{PLACE})", ends=True),
    rule("lives_in", rf"{WE} no longer live in (?P<object>{PLACE})", ends=True),
    passing(
        "lives_with",
        rf"{SELF}{NOW} live with (?:my |our )?(?P<object>(?:elderly )?(?:parents?|mother|mom|mum|father|dad|sister|"
        rf"brother|husband|wife|partner|girlfriend|boyfriend|grandparents?|roommates?|flatmates?|family|son|"
        rf"daughter)(?: and (?:\w+ )?\w+)?)",
    ),
    passing("from", rf"{AM}(?: originally)? from (?P<object>{COUNTRY})"),
    rule("from", rf"{AM} an? {JOB} from (?P<object>{PLACE})"),
    passing("grew_up_in", rf"{SELF} (?:grew up|was raised) in (?P<object>{COUNTRY})"),
    passing("works_at", rf"{WORK} (?:at|for) (?P<object>{FIRM})(?: as an? {JOB})?"),
    passing("works_at", rf"(?:{SELF}|{HAVE}){NOW} started (?:working )?(?:at|for) (?P<object>{NAME})"),
    rule("works_at", rf"(?:{SELF}|{HAVE}){NOW} joined (?P<object>{NAME})(?: as an? {JOB})?"),
    rule("works_at", rf"{SELF} (?:no longer|used to) work (?:at|for) (?P<object>{NAME})", ends=True),
    rule("works_at", rf"{SELF}{NOW} (?:left|quit) my job at (?P<object>{NAME})", ends=True),
    passing("works_at", rf"(?:{AM}{NOW}|{WORK} as) an? {JOB} (?:at|for) (?P<object>{FIRM})"),
    passing(
        "works_as", rf"(?:{WORK}(?: (?:at|for) {FIRM})?|(?:{SELF}|{HAVE}){NOW} joined {NAME}) as an? (?P<object>{JOB})"
    ),
    passing("works_as", rf"{AM}{NOW} an? (?:\d\d-year-old )?(?P<object>{JOB})(?!['\u2019]| by training)"),
    passing(
        "works_as",
        rf"{WORK} (?:at|for|in) (?:(?!same\b|as\b|just\b)[\w'\u2019-]+ ){{1,5}}as an? (?P<object>{JOB})(?!['\u2019])",
    ),
    passing("works_as", rf"{AM}{NOW} the (?P<object>(?i:ceo|cto|cfo|coo|cio|(?:co-?)?founder)) (?:of|at) {_HOLDER}"),
    rule("works_as", rf"{SELF} used to (?:be|work as) an? (?P<object>{JOB})", ends=True),
    passing("works_in", rf"{SELF}{NOW} work in (?P<object>{FIELD})"),
    rule("age", rf"{AM}{NOW} (?:an? )?(?P<object>\d{{1,3}})[- ]years?[- ]old\b", tail=""),
    rule("age", rf"{AM} (?P<object>\d{{2}})", tail=r"(?=$|,| and [A-Za-z]| but\b)"),
    passing("age", rf"{SELF}{NOW} turned (?P<object>\d{{1,3}})"),
    rule("birthday", r"[Mm]y birthday(?:['\u2019]s| is)(?: on)? (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    passing("birthday", rf"[Mm]y birthday(?:['\u2019]s| is)(?: on)?(?: the)? (?P<object>{DAY})"),
    rule("birthday", r"(?:I|i) was born on (?P<object>(?=\D*\d)[\w ,-]+)", tail="$"),
    passing("born_in", rf"{SELF} was born(?: and raised)? in (?P<object>{COUNTRY})"),
    passing("pronouns", r"[Mm]y pronouns are (?P<object>[a-z]+(?:/[a-z]+){1,2})"),
    rule("pronouns", rf"{SELF}{NOW} (?:use|go by) (?P<object>[a-z]+/[a-z]+(?:/[a-z]+)?)(?: pronouns)?"),
    passing("time_zone", r"[Mm]y time ?zone is (?P<object>[A-Z][\w+:/-]*(?: [A-Z]\w+)?)"),
    passing("time_zone", rf"{AM} in the (?P<object>[A-Z]\w+) time ?zone"),
    passing("native_language", rf"[Mm]y (?:native language|mother tongue|first language) is (?P<object>{LANGUAGE})"),
    passing(
        "diet",
        rf"{AM}{NOW} (?:an? )?(?:strict |lifelong )?{DIET}(?! (?:on|until|during|in|this|for (?:the|an?|now|one))\b)",
    ),
    rule("diet", rf"{HAVE}{NOW} been (?:an? )?{DIET}", tail=r" (?:since|for (?:years|\w+ years)|all my life)\b"),
    rule("diet", rf"{SELF}{NOW} (?:eat|went|go|keep) {DIET}"),
    rule("diet", rf"{AM} no longer (?:an? )?{DIET}", ends=True),
    rule("diet", rf"{SELF} used to be (?:an? )?{DIET}", ends=True),
    passing("does_not_eat", rf"{SELF} (?:don['\u2019]?t|do not|can['\u2019]?t|cannot|never) eat (?P<object>{FOOD})"),
    passing("intolerant_to", rf"{AM}{NOW} (?P<object>lactose|gluten|fructose|histamine)[- ]intolerant"),
    passing("allergic_to", rf"{HAVE} an? (?:(?:severe|bad|mild|serious) )?(?P<object>{THING}) allergy"),
    passing(
        "has_condition",
        rf"(?:{HAVE}|{SELF}{NOW} have|{SELF} suffer from|{AM} living with) (?P<object>{ILLNESS})(?! in my family)",
    ),
    rule("has_condition", rf"{AM}{NOW} (?:an? )?(?P<object>{_CONDITION})", tail=_OWN_END),
    passing("own_", rf"[Mm]y (?P<kind>{_TRAIT}) is (?P<object>[A-Z0-9][\w.+/-]*(?: [A-Z0-9][\w.+/-]*){{0,3}})"),
    passing(
        "has_condition",
        rf"(?:{SELF} was|{HAVE} been|{SELF} got) (?:recently |just |also )?diagnosed with (?P<object>{ILLNESS})",
    ),
    passing("speaks", rf"{SELF}{NOW} speak {LANGUAGES}", many=True),
    passing("speaks", rf"{AM}{NOW} (?:fluent in|bilingual in) {LANGUAGES}", many=True),
    passing(
        "learning",
        rf"(?:{AM}{NOW}|{HAVE} been) learning (?:to (?:speak|play) )?(?:the )?(?P<object>{LANGUAGE}|{INSTRUMENT})",
    ),
    passing("learning", rf"{SELF}{NOW} learn (?P<object>{LANGUAGE})"),
    passing("plays", rf"(?:{SELF}{MUCH} play|{HAVE} been playing) (?:the )?(?P<object>{INSTRUMENT}|{SPORT})"),
    rule("likes", rf"{SELF} (?:no longer|used to) (?:like|love|enjoy) (?!to\b){LIST}", ends=True, many=True),
    rule(
        "prefers",
        rf"(?:I|i)(?:['\u2019]d| would) (?:rather (?:have|use|drink|receive)|now rather (?:have|get|use|drink|receive))"
        rf" (?P<object>{THING} than {THING})",
    ),
    passing(
        "favourite_",
        rf"[Mm]y fav(?:ou?rite|e)? (?!thing|part|one|way|time|bit|memory|"
        rf"moment)(?P<kind>\w+(?: \w+)?) is (?:now )?(?P<object>{THING})",
    ),
    passing(
        "favourite_",
        rf"(?P<object>{NAME}) is (?:definitely |still )?my (?:all-time |absolute )?favou?rite (?P<kind>{FAVOURED})",
    ),
    passing("relation", rf"[Mm]y {RELATION}(?:['\u2019]s name is| is (?:called|named)) (?P<object>{NAME})"),
    passing("relation", rf"{SELF}{NOW} have an? {RELATION} (?:called|named) (?P<object>{NAME})"),
    rule(
        "relation",
        rf"{HAVE} an? (?:close |good |best |older |younger |little |big |twin )?{RELATION},? (?:called |"
        rf"named )?(?P<object>{PERSON}),",
        tail="",
    ),
    rule("relation", rf"{HAVE} an? {NEAR}{RELATION} (?P<object>{PERSON})", tail=r"(?= (?:from|who|in|that)\b)"),
    passing("partner", rf"{HAVE} been dating (?P<object>{PERSON})"),
    passing("married_to", rf"{AM}{NOW} married to (?P<object>{NAME})"),
    rule(
        "marital_status",
        rf"{AM}{NOW} (?P<object>married|engaged|divorced|widowed)",
        tail=r"(?=$|[,;.]| (?:and|but|with)\b)",
    ),
    rule("marital_status", rf"{HAVE} been (?:happily )?(?P<object>married|engaged)", tail=r" (?:for|since)\b"),
    passing("has_children", rf"(?:{HAVE}|{WE}{NOW} have) (?P<object>{COUNT} {KIDS})"),
    passing("has_siblings", rf"(?:{HAVE}|{SELF}{NOW} have) (?P<object>{COUNT} (?:\w+ )?(?:brothers|sisters|siblings))"),
    passing(
        "has_pet",
        rf"(?:{HAVE}|{WE}{NOW} (?:have|adopted|got)) an? (?:\w+ )?(?P<kind>{PET}) (?:called|named) (?P<object>{NAME})",
    ),
    passing("has_pet", rf"[Mm]y (?P<kind>{PET})(?:['\u2019]s name is| is (?:called|named)) (?P<object>{NAME})"),
    passing(
        "has_pet",
        rf"(?:{HAVE}|{SELF}{NOW} (?:have|adopted|got)) an? (?P<object>(?:rescue )?{PET})(?! (?:called|named)|, [A-Z])",
    ),
    rule(
        "has_pet",
        rf"(?:{HAVE}|{WE}{NOW} have) (?P<object>{COUNT} (?:rescue )?(?:dogs|cats|rabbits|horses|parrots))",
        tail=r"(?=$|\.| and\b| who\b| that\b)",
    ),
    rule(
        "has_pet",
        rf"{HAVE} (?:two|three|\d) {PET}s(?:,| called| named) (?P<object>{PERSON}(?:(?:, | and |, and ){PERSON})+)",
        many=True,
    ),
    passing("owns", rf"{SELF}{NOW} own an? {MODEL}"),
    passing(
        "owns",
        rf"(?:{WE}|{HAVE}){NOW} bought (?:an?|our first|my first) (?:new )?(?P<object>(?:\w+ )?(?:house|home|"
        rf"apartment|condo|flat|cabin|cottage|farm))",
    ),
    passing(
        "owns",
        rf"[Mm]y (?:car|bike|phone|laptop|camera|guitar|truck) is an? (?P<object>(?:(?:19|20)\d\d )?{NAME})",
    ),
    passing(
        "owns",
        rf"(?:{HAVE}|{SELF}{NOW} (?:have|own)) (?P<object>{COUNT} (?:\w+ )?(?:bikes|cars|guitars|cameras|boats))",
    ),
    passing("drives", rf"{SELF}{NOW} drive an? (?!hard bargain|wedge|nail|point){MODEL}"),
    passing("attended", rf"{SELF}{NOW} graduated from (?P<object>(?:the )?{PLACE})"),
    rule(
        "attended", rf"{SELF} graduated (?:with|in) [\w'\u2019 ]{{1,60}}? from (?P<object>(?:the )?{PLACE})", tail=OPEN
    ),
    passing(
        "degree",
        rf"{SELF}{NOW} graduated (?:from {FIRM} )?with (?:an? |my )(?P<object>{DEGREE} in {STUDY_SUBJECT})",
    ),
    passing(
        "degree",
        rf"(?:{HAVE}|{SELF} hold|{SELF} earned|{SELF}{NOW} completed) (?:an? |"
        rf"my )(?P<object>{DEGREE} in {STUDY_SUBJECT})",
    ),
    passing("studied", rf"{SELF} (?:studied|majored in|minored in) (?P<object>{STUDY_SUBJECT})"),
    passing("studies", rf"(?:{AM}{NOW} (?:studying|majoring in)|{SELF} study) (?P<object>{STUDY_SUBJECT})"),
    passing(
        "studies",
        rf"{AM}{NOW} (?:pursuing|doing|working on|completing) (?:an?|my) (?P<object>{DEGREE} in {STUDY_SUBJECT})",
    ),
    passing(
        "hobby",
        rf"{HAVE} been (?P<object>{HOBBY}) for (?:about |over |around |almost )?(?:\w+ ){{1,2}}(?:years|months)",
    ),
    passing(
        "hobby",
        rf"{SELF} (?:started|took up) (?P<object>{HOBBY}) (?:about |around )?(?:\w+ ){{1,2}}(?:years|months) ago",
    ),
    passing("plays", rf"{SELF} (?:started|began) playing (?:the )?(?P<object>{INSTRUMENT})"),
    passing(
        "commute",
        r"[Mm]y (?:daily )?commute is (?:about |around )?(?P<object>\d{1,3} (?:minutes|miles|km|hours?)(?: each way)?)",
    ),
    passing(
        "studies_at",
        rf"{AM}{NOW} (?:an? (?:\w+[- ]){{0,3}}student|studying(?: {STUDY_SUBJECT})?) at (?P<object>{FIRM})",
    ),
    passing("volunteers_at", rf"{SELF}{MUCH}(?: regularly)? volunteer (?:at|with|for) {HELPED}"),
    passing("member_of", rf"{AM}{NOW} (?:an? )?(?:active )?member of (?P<object>{FIRM})"),
    rule(
        "habit",
        rf"{SELF} (?:usually|typically|normally|generally|always|often) (?P<object>{ROUTINE} {DO}{SOMETIME})",
        tail=THEN,
    ),
    rule("habit", rf"{SELF} (?P<object>{ROUTINE} {DO}{EVERY})", tail=THEN),
    rule("habit", rf"{HAVE} been (?P<object>{ROUTINELY} {DO}{EVERY})", tail=THEN),
    rule(
        "plans",
        rf"{AM} (?P<object>(?:flying to|going to|travell?ing to|visiting|moving to|getting married|meeting|"
        rf"starting at)(?: {NAME})? (?P<soon>{SOON}))",
        tail=OPEN_END,
    ),
    rule(
        "plans",
        rf"(?:{AM}{NOW} (?:planning|taking|going on|preparing for)|{HAVE}) (?:an? |my |"
        rf"our )(?P<object>(?:[\w'\u2019-]+ ){{0,3}}?"
        rf"{EVENT}(?: (?:to|with|at|in) {COUNTRY})?,? (?P<soon>{SOON}))",
        tail=OPEN_END,
    ),
    rule(
        "plans",
        rf"[Mm]y (?P<what>(?:[\w'\u2019-]+ ){{0,2}}?{EVENT})(?: to {COUNTRY})? is (?P<soon>{SOON})",
        tail=OPEN_END,
    ),
)
# What people mention of themselves while they speak of something else: true wherever it stands in a sentence.

MENTIONS: Final = (
    mention("relation", rf"{MINE} {NEAR}{RELATION}{CALLED}{NAMED}", tail=r"(?!\w| or [A-Z])"),
    mention("relation", rf"{MINE} (?:[\w-]+ ){{0,2}}{DOCTOR},? (?P<object>Dr\.? [A-Z]\w+)", tail=""),
    mention(
        "has_pet",
        rf"{MINE} (?:[a-z]+ )?(?P<kind>{PET}){CALLED}{NAMED}",
        tail=r"(?!\w| or [A-Z]|,? (?:died|passed|is dead|was put))",
    ),
    mention("has_pet", rf"\b[Mm]y (?P<object>dog|cat|puppy|kitten|parrot|rabbit|hamster|horse|dogs|cats){UNNAMED}"),
    mention(
        "family",
        r"\b[Mm]y (?:older |younger |little |big |twin )?(?P<object>wife|husband|fianc[\u00e9e]e?|girlfriend|"
        r"boyfriend|kids|children|son|"
        r"daughter|sister|sisters|brothers|grandkids|grandchildren|grandson|granddaughter)" + UNNAMED,
    ),
    mention(
        "family",
        r"(?:with|for|and|to|of|from|visit|see|call|by|get) my (?:older |younger |little |big )?(?P<object>brother)"
        + UNNAMED,
    ),
    mention(
        "likes",
        r"\bI['\u2019]m an? (?:big|huge|massive|total) (?P<object>(?:[A-Z][\w'\u2019-]* ){0,2}[A-Z][\w'\u2019-]*) fan",
    ),
    mention(
        "lives_in",
        rf"\b[Mm]y (?:new |current |little |small )?(?:\w+ )?(?:apartment|flat|house|home|"
        rf"condo) in (?P<object>{COUNTRY})",
    ),
    mention("from", rf"\b[Mm]y hometown(?: of|,| is) (?P<object>{COUNTRY})"),
    mention("works_as", rf"\b[Mm]y (?:new |current )?(?:job|role|position|work) as an? (?P<object>{JOB})"),
    mention(
        "works_at", rf"\b[Mm]y (?:new |current )?(?:job|role|position|internship) at (?P<object>{FIRM})", tail=OPEN
    ),
    mention("has_condition", rf"\b[Mm]y (?P<object>{ILLNESS})"),
    mention("has_children", rf"{MINE} (?P<object>{COUNT} {KIDS})"),
    mention("has_children", rf"{MINE} (?P<object>\d{{1,2}}[- ]year[- ]old (?:son|daughter|twins))"),
    mention("degree", rf"\b[Mm]y (?:undergraduate |graduate |college )?(?P<object>{DEGREE} in {STUDY_SUBJECT})"),
    mention(
        "works_as",
        rf"(?:^|, |\. )[Aa]s an? (?:\d\d[- ]year[- ]old )?(?P<object>{JOB})(?= [^,]{{1,80}},|,)[^,]{{0,80}}, (?:I|i|"
        rf"my|we)\b(?! (?:feel|argue|agree|disagree|would)\b)",
        tail="",
    ),
)
MENTIONED: Final = LazyPattern(r"(?:[Mm]y|[Oo]ur|[Aa]s an?|I['\u2019]m an?) ")
"""One of these is in everything that is mentioned, and in few sentences."""
AT_WORK: Final = rule("works_at", rf"{AM}{NOW} (?:at|with) (?P<object>{NAME})")
"""`I'm at Acme`: an employer only after the speaker said which job they left; otherwise just a place."""

KINSHIP: Final = LazyPattern(
    rf"^(?:[Mm]y|[Oo]ur) (?:(?:older|younger|big|little|twin) )?{RELATION},? (?P<object>{PERSON}),? (?P<rest>[a-z].*)$"
)
COMPANY: Final = LazyPattern(
    rf"^(?P<rest>[^,;]{{1,200}}?),? with my {RELATION},? (?P<object>{PERSON})"
    r"(?:,? and (?:our|my|two|three)\b[\w ]{1,60})?$"
)
"""A companion at the end of a clause: `with my sister Anna`."""

# Statements about other people and things: "Alice lives in Tokyo", "Project X uses Python 3.11".

Stated = tuple[str, Rule, re.Match[str]]
"""A subject, and the rule that matched what is stated of it."""
_NOT_A_SUBJECT: Final = (
    r"(?:I|He|She|It|We|You|They|This|That|These|Those|There|Here|Someone|Somebody|Something|Everyone|Everybody|"
    r"Everything|Nobody|Nothing|None|Anyone|Anybody|Most|Many|Some|Any|All|Each|Every|Both|Few|No|Not|Neither|Either|"
    r"One|"
    r"Who|Whoever|What|Whatever|When|Where|Which|Why|How|If|While|Because|Since|And|But|Or|So|Yes|Ok|Okay|Hi|Hello|"
    r"Hey|Dear|My|Our|Your|His|Her|Their|Its|The|An?|People|Maybe|Perhaps|Then|Now|Today|Yesterday|Tomorrow|According|"
    r"In|At|On|For|From|With|Also|Please|Only|Even|Never|Always|Imagine|Suppose|Let|Say|God|Bet|User|Assistant)\b"
)
_WORD: Final = r"[A-Z\u00c0-\u00de][\w\u2019'&-]*"
_WHO: Final = (
    rf"(?!{_NOT_A_SUBJECT})(?:(?:Dr|Mr|Mrs|Ms|Prof)\.? )?{_WORD}"
    r"(?: (?:(?:de|la|van|von|der) )?[A-Z\u00c0-\u00de0-9][\w\u2019'&-]*){0,3}"
)
_SYSTEM: Final = (
    r"(?:[Tt]he|[Oo]ur|[Mm]y) (?P<system>(?:[\w-]+ ){0,2}?(?i:server|backend|frontend|project|app|application|site|"
    r"service|api|database|cluster|pipeline|repo|repository|codebase|stack|laptop|team|company|bot|game|library|"
    r"client|machine|website)\b)"
)
SUBJECT: Final = LazyPattern(
    rf"^(?:(?P<who>{_WHO})|{_SYSTEM})(?: (?:now|currently|still|also|recently|just|actually))? (?P<rest>[a-z].*)$"
)
_ONE_TOOL: Final = rf"(?:{NAME}|[\w.+#-]*[\d+#][\w.+#-]*)"
_TOOL: Final = rf"(?P<object>{_ONE_TOOL})"
_TOOLS: Final = rf"(?P<object>{_ONE_TOOL}(?:(?:, | and |, and ){_ONE_TOOL})*)"
_OF_SYSTEMS: Final = (
    rule(
        "uses",
        rf"(?:(?:now )?uses|is (?:now )?using|(?:has )?(?:switched|migrated)(?: from {NAME})? to) {_TOOLS}",
        many=True,
    ),
    rule("runs_on", rf"(?:now )?runs on {_TOOL}"),
    rule("runs", rf"(?:now )?runs {_TOOL}"),
    rule("written_in", rf"is (?:now )?written in {_TOOL}"),
    rule("built_with", rf"is (?:now )?built (?:with|on|in) {_TOOL}"),
    rule("hosted_on", rf"is (?:now )?hosted (?:on|at|by) {_TOOL}"),
    rule("depends_on", rf"depends on {_TOOL}"),
)
_PLACED: Final = rule("lives_in", rf"is (?:now )?(?:based|headquartered|located) in (?P<object>{PLACE})")
_OF_PEOPLE: Final = (
    rule(
        "lives_in",
        rf"(?:now )?(?:lives in|(?:moved|relocated)(?: from {NAME})? to|is living in) (?P<object>{PLACE})",
    ),
    rule("works_at", rf"(?:now )?(?:works at|works for|is working (?:at|for)) (?P<object>{NAME})(?: as an? {JOB})?"),
    rule("works_at", rf"(?:is|works as) an? {JOB} (?:at|for) (?P<object>{NAME})"),
    rule("works_as", rf"(?:is|works as) an? (?P<object>{JOB})(?: (?:at|for|in) {NAME})?"),
    rule("works_as", rf"works (?:at|for) {NAME} as an? (?P<object>{JOB})"),
    rule("age", r"is (?:now )?(?P<object>\d{1,3}) years old"),
    rule("age", r"(?:just )?turned (?P<object>\d{1,3})"),
    rule("born_in", rf"was born in (?P<object>{PLACE})"),
    rule("diet", rf"is (?:now )?(?:an? )?{DIET}"),
    rule("allergic_to", rf"is (?:severely )?allergic to {LIST}", many=True),
    rule("speaks", rf"speaks {LANGUAGES}", many=True),
    rule("married_to", rf"is married to (?P<object>{NAME})"),
    rule("likes", rf"(?:really )?(?:likes|loves|enjoys) (?!to\b){LIST}", many=True),
    rule(
        "dislikes",
        rf"(?:really )?(?:hates|dislikes|can['\u2019]t stand|doesn['\u2019]t like) (?!to\b){LIST}",
        many=True,
    ),
    rule("prefers", rf"prefers (?!to\b)(?P<object>{THING}(?: (?:over|to) {THING})?)"),
    rule("has_pet", rf"has an? {PET} (?:called|named) (?P<object>{PERSON})"),
    rule("drives", rf"drives an? (?P<object>{THING})"),
)
_IS_MINE: Final = LazyPattern(
    rf"^(?P<object>{_WHO}) is (?:my|our) (?:(?:older|younger|elder|new|twin|big|little) )?{RELATION}{ASIDE}$"
)
_NEXT_CLAUSE: Final = LazyPattern(
    r"(?:,? and|,? but)(?: also)? (?=(?:lives in|works (?:at|for|as)|speaks [A-Z]|is (?:an?|allergic|vegan|vegetarian|"
    r"based|married|\d)|uses |runs |was born in|likes |loves |hates |prefers |drives an? |has an? )"
    rf"|{_WORD} (?:lives in|works (?:at|for|as)|is (?:based|an?|my) |uses ))"
)
"""Where a second statement begins: about the same subject, whose name is omitted, or about another."""


def matches_in(clause: str) -> Iterator[Stated]:
    """The statements of a clause about the person or thing that it names first."""
    found = SUBJECT.match(clause)
    if found is None:
        return
    rules = (*_OF_PEOPLE, *_OF_SYSTEMS) if found["who"] else _OF_SYSTEMS
    yield from _matches(found["who"] or found["system"], found["rest"], (*rules, _PLACED))


def matches_about(person: str, rest: str) -> Iterator[Stated]:
    """The statements about a person in the rest of a clause."""
    return _matches(person, rest, (*_OF_PEOPLE, _PLACED))


def relative_in(clause: str) -> tuple[str, str] | None:
    """The relation and the name in `Maria is my sister`."""
    found = _IS_MINE.match(clause)
    return (relation_of(found["relation"]), found["object"]) if found else None


def split_clauses_about(clause: str, subject: str) -> list[str]:
    """A clause about a subject, split into one clause per statement."""
    first, *others = _NEXT_CLAUSE.split(clause)
    return [first, *(part if part[:1].isupper() else f"{subject} {part}" for part in others)]


def subject_in(clause: str) -> str | None:
    """The person or thing that a clause names first, as spelled there."""
    found = SUBJECT.match(clause)
    return clause[: found.end("who" if found["who"] else "system")] if found else None


def _matches(subject: str, rest: str, rules: tuple[Rule, ...]) -> Iterator[Stated]:
    return ((subject, rule, found) for rule in rules if (found := rule.pattern.match(rest)))
