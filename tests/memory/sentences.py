"""Sentences that the plain rules are measured on: what is to be learnt, taken back, and left alone.

They were written before the rules that they measure. Those at an even place (0, 2, 4, ...) of each list were in sight
while rules were written; those at an odd place were not. FRESH_* were written after both had been measured, and LAST_*
after those. REVIEW_* were written by somebody who had not written the rules, AFTER_REVIEW_* with them but before what
they had shown was corrected.
"""

from typing import NamedTuple


class Learn(NamedTuple):
    """A message, and all the facts that are to be current after it."""

    text: str
    facts: tuple[str, ...]


class TakeBack(NamedTuple):
    """What is said before, what takes it back, what must then not be current, and all that is to be current."""

    before: tuple[str, ...]
    text: str
    gone: tuple[str, ...]
    stands: tuple[str, ...] = ()


LEARN = [
    Learn("I'm a vegan.", ("user diet vegan",)),
    Learn("Just so you know, I'm vegetarian.", ("user diet vegetarian",)),
    Learn("I'm vegan and allergic to peanuts.", ("user diet vegan", "user allergic_to peanuts")),
    Learn(
        "I'm allergic to shellfish and lactose intolerant.",
        ("user allergic_to shellfish", "user intolerant_to lactose"),
    ),
    Learn("I work at Siemens as a data engineer.", ("user works_at Siemens", "user works_as data engineer")),
    Learn(
        "I'm a nurse at Charité and I live in Berlin.",
        ("user works_as nurse", "user works_at Charité", "user lives_in Berlin"),
    ),
    Learn("I live in Paris with my wife Claire.", ("user lives_in Paris", "user married_to Claire")),
    Learn(
        "I live in Lyon with my husband Marc and our two kids.",
        ("user lives_in Lyon", "user married_to Marc", "user has_children two kids"),
    ),
    Learn("Project X uses Python 3.11.", ("Project X uses Python 3.11",)),
    Learn("Our backend uses PostgreSQL 16.", ("backend uses PostgreSQL 16",)),
    Learn("Alice lives in Tokyo.", ("Alice lives_in Tokyo",)),
    Learn("Bob works at Microsoft.", ("Bob works_at Microsoft",)),
    Learn("My sister Liis works at Bolt.", ("user sister Liis", "Liis works_at Bolt")),
    Learn("My brother Tom lives in Dublin.", ("user brother Tom", "Tom lives_in Dublin")),
    Learn("I prefer dark mode.", ("user prefers dark mode",)),
    Learn("I prefer aisle seats.", ("user prefers aisle seats",)),
    Learn("I'd rather have tea than coffee.", ("user prefers tea over coffee",)),
    Learn("I prefer answers in bullet points.", ("user prefers answers in bullet points",)),
    Learn("My name is Priya and I'm 29.", ("user name Priya", "user age 29")),
    Learn("Hey, I'm Daniel, I'm 41 years old.", ("user name Daniel", "user age 41")),
    Learn("I'm from Portugal but I live in London.", ("user from Portugal", "user lives_in London")),
    Learn("I grew up in Ohio.", ("user grew_up_in Ohio",)),
    Learn("Acme is based in Berlin.", ("Acme lives_in Berlin",)),
    Learn("Bolt is headquartered in Tallinn.", ("Bolt lives_in Tallinn",)),
    Learn("My dog's name is Biscuit.", ("user has_pet Biscuit",)),
    Learn("We have two cats, Luna and Milo.", ("user has_pet Luna", "user has_pet Milo")),
    Learn("I drive a 2018 Honda Civic.", ("user drives 2018 Honda Civic",)),
    Learn("I ride a Brompton to work.", ("user owns Brompton",)),
    Learn("I'm a senior product manager.", ("user works_as senior product manager",)),
    Learn("I work as a freelance translator.", ("user works_as freelance translator",)),
    Learn("I speak Estonian and a bit of Finnish.", ("user speaks Estonian", "user speaks Finnish")),
    Learn("My native language is Tamil.", ("user native_language Tamil",)),
    Learn("My favourite author is Ursula Le Guin.", ("user favourite_author Ursula Le Guin",)),
    Learn("My favorite food is ramen.", ("user favourite_food ramen",)),
    Learn("I recently moved to Amsterdam for work.", ("user lives_in Amsterdam",)),
    Learn("We just moved to Utrecht.", ("user lives_in Utrecht",)),
    Learn("I've been living in Madrid since 2020.", ("user lives_in Madrid",)),
    Learn("I've been working at Google for three years.", ("user works_at Google",)),
    Learn("I'm married to Jonas and we live in Oslo.", ("user married_to Jonas", "user lives_in Oslo")),
    Learn("My wife's name is Ingrid.", ("user married_to Ingrid",)),
    Learn("My daughter Emma is 6 years old.", ("user daughter Emma", "Emma age 6")),
    Learn("My son Leo is allergic to eggs.", ("user son Leo", "Leo allergic_to eggs")),
    Learn("Maria is my manager.", ("user manager Maria",)),
    Learn("Kenji is my roommate.", ("user roommate Kenji",)),
    Learn("I hate cilantro.", ("user dislikes cilantro",)),
    Learn("I can't stand loud music.", ("user dislikes loud music",)),
    Learn("I love hiking and board games.", ("user likes hiking", "user likes board games")),
    Learn("I really like Thai food.", ("user likes Thai food",)),
    Learn("My pronouns are they/them.", ("user pronouns they/them",)),
    Learn("I use she/her pronouns.", ("user pronouns she/her",)),
    Learn("My birthday is on March 3rd.", ("user birthday March 3rd",)),
    Learn("I was born in Kraków in 1988.", ("user born_in Kraków",)),
    Learn("I don't eat pork.", ("user does_not_eat pork",)),
    Learn("I eat halal.", ("user diet halal",)),
    Learn("Alice works at Acme and lives in Tokyo.", ("Alice works_at Acme", "Alice lives_in Tokyo")),
    Learn("Dr. Meyer is my dentist.", ("user dentist Dr. Meyer",)),
    Learn("I'm currently learning Japanese.", ("user learning Japanese",)),
    Learn("I have a severe peanut allergy.", ("user allergic_to peanut",)),
    Learn("The staging server runs Ubuntu 22.04.", ("staging server runs Ubuntu 22.04",)),
    Learn("Project Atlas is written in Rust.", ("Project Atlas written_in Rust",)),
    Learn("My time zone is CET.", ("user time_zone CET",)),
    Learn("I'm in the Pacific time zone.", ("user time_zone Pacific",)),
]

TAKE_BACK = [
    TakeBack(("I'm a vegan.",), "I'm not vegan anymore, I eat meat.", ("user diet vegan",)),
    TakeBack(("I'm a vegan.",), "I stopped being vegan.", ("user diet vegan",)),
    TakeBack(
        ("I prefer dark mode.",),
        "Actually, I prefer light mode now.",
        ("user prefers dark mode",),
        ("user prefers light mode",),
    ),
    TakeBack(("I prefer dark mode.",), "I no longer prefer dark mode.", ("user prefers dark mode",)),
    TakeBack(
        ("I prefer tea.",), "I changed my mind, I prefer coffee now.", ("user prefers tea",), ("user prefers coffee",)
    ),
    TakeBack(
        ("I prefer window seats.",),
        "I've changed my mind about seats: I prefer aisle seats.",
        ("user prefers window seats",),
        ("user prefers aisle seats",),
    ),
    TakeBack(
        ("I work at Siemens.",),
        "Actually I quit Siemens, I'm at SAP now.",
        ("user works_at Siemens",),
        ("user works_at SAP",),
    ),
    TakeBack(("I work at Siemens.",), "I left Siemens last month.", ("user works_at Siemens",)),
    TakeBack(("I live in Rome.",), "I don't live in Rome anymore.", ("user lives_in Rome",)),
    TakeBack(("I live in Oslo.",), "We moved away from Oslo.", ("user lives_in Oslo",)),
    TakeBack(("I'm vegetarian.",), "I used to be vegetarian.", ("user diet vegetarian",)),
    TakeBack(("I'm vegetarian.",), "I gave up being vegetarian last year.", ("user diet vegetarian",)),
    TakeBack(("I'm allergic to nuts.",), "It turns out I'm not allergic to nuts.", ("user allergic_to nuts",)),
    TakeBack(("I'm allergic to cats.",), "I'm no longer allergic to cats.", ("user allergic_to cats",)),
    TakeBack(("I love coffee.",), "I don't like coffee anymore.", ("user likes coffee",), ("user dislikes coffee",)),
    TakeBack(("I love coffee.",), "I've gone off coffee.", ("user likes coffee",)),
    TakeBack(("I hate olives.",), "I actually like olives now.", ("user dislikes olives",), ("user likes olives",)),
    TakeBack(("I hate olives.",), "I don't hate olives anymore.", ("user dislikes olives",)),
    TakeBack(("I drive a Volvo.",), "I sold my Volvo.", ("user drives Volvo",)),
    TakeBack(
        ("I drive a Volvo.",),
        "I don't drive a Volvo anymore, I drive a Tesla.",
        ("user drives Volvo",),
        ("user drives Tesla",),
    ),
    TakeBack(("I'm a teacher.",), "I'm not a teacher anymore.", ("user works_as teacher",)),
    TakeBack(
        ("I'm a teacher.",),
        "I quit teaching, I'm a software developer now.",
        ("user works_as teacher",),
        ("user works_as software developer",),
    ),
    TakeBack(("I'm married to Sam.",), "Sam and I got divorced.", ("user married_to Sam",)),
    TakeBack(("I'm married to Sam.",), "I'm not married to Sam anymore.", ("user married_to Sam",)),
    TakeBack(
        ("I prefer tea.", "I prefer dark mode."),
        "I'm done with tea.",
        ("user prefers tea",),
        ("user prefers dark mode",),
    ),
    TakeBack(
        ("I prefer email.", "I prefer window seats."),
        "I prefer phone calls instead of email.",
        ("user prefers email",),
        ("user prefers phone calls instead of email", "user prefers window seats"),
    ),
    TakeBack(
        ("I'm vegan and allergic to peanuts.",),
        "I'm not vegan any more, but I'm still allergic to peanuts.",
        ("user diet vegan",),
        ("user allergic_to peanuts",),
    ),
    TakeBack(
        ("I'm vegan and allergic to peanuts.",),
        "I eat meat again.",
        ("user diet vegan",),
        ("user allergic_to peanuts",),
    ),
    TakeBack(
        ("Project X uses Python 3.11.",), "Project X no longer uses Python 3.11.", ("Project X uses Python 3.11",)
    ),
    TakeBack(
        ("Project X uses Python 3.11.",),
        "Project X uses Python 3.12 now.",
        ("Project X uses Python 3.11",),
        ("Project X uses Python 3.12",),
    ),
    TakeBack(("Alice lives in Tokyo.",), "Alice doesn't live in Tokyo anymore.", ("Alice lives_in Tokyo",)),
    TakeBack(("Alice works at Acme.",), "Alice left Acme.", ("Alice works_at Acme",)),
    TakeBack(
        ("My favourite colour is green.",), "My favourite colour isn't green anymore.", ("user favourite_colour green",)
    ),
    TakeBack(
        ("My favourite colour is green.",),
        "My favourite colour is blue now.",
        ("user favourite_colour green",),
        ("user favourite_colour blue",),
    ),
]

LEAVE = [
    "I wish I were vegan.",
    "If I lived in Paris, I'd eat croissants every day.",
    "My friend says he is vegan.",
    "Do you think I'm vegan?",
    "I'm not vegan.",
    "I don't live in Berlin.",
    "Where do I live?",
    "What's the best place to live in Spain?",
    "Should I move to Lisbon?",
    "I might quit my job next year.",
    "I'm thinking about becoming vegetarian.",
    "Imagine Alice lives in Tokyo.",
    "Alice said she works at Acme.",
    "According to Bob, Project X uses Java.",
    '"I live in Madrid," she wrote in the letter.',
    "Write a story where Alice lives in Tokyo.",
    "Does Alice live in Tokyo?",
    "What if Project X uses Python 3.12?",
    "I'm writing a novel. The hero lives in Prague.",
    "Translate this into German: I am allergic to nuts.",
    "He lives in Rome.",
    "They prefer dark mode.",
    "Most people prefer tea.",
    "Everyone at Google works from home on Fridays.",
    "I don't know whether I prefer tea or coffee.",
    "I'm not sure if I'm allergic to penicillin.",
    "def f(): return 'I live in Rome'",
    "SELECT city FROM users WHERE name = 'Alice lives in Tokyo'",
    "My friend's cousin maybe works at Apple.",
    "I used to think I was vegan.",
    "You live in the cloud.",
    "I almost moved to Canada once.",
    "Nobody lives in Chernobyl.",
    "Not everyone likes hiking.",
]


FRESH_LEARN = [
    Learn("fyi I'm pescatarian", ("user diet pescatarian",)),
    Learn("I'm a vegetarian and I live in Ghent.", ("user diet vegetarian", "user lives_in Ghent")),
    Learn(
        "I work for Spotify as a backend developer and live in Stockholm.",
        ("user works_at Spotify", "user works_as backend developer", "user lives_in Stockholm"),
    ),
    Learn("Carol is a lawyer and lives in Boston.", ("Carol works_as lawyer", "Carol lives_in Boston")),
    Learn("My boss Hannah is based in Zurich.", ("user boss Hannah", "Hannah lives_in Zurich")),
    Learn("Our API is written in Go.", ("API written_in Go",)),
    Learn("Northwind is located in Seattle.", ("Northwind lives_in Seattle",)),
    Learn("We live in Antwerp with two dogs.", ("user lives_in Antwerp",)),
    Learn("I'm 36 and I'm allergic to bees.", ("user age 36", "user allergic_to bees")),
    Learn("Hello! I'm Marta, I work at Ikea.", ("user name Marta", "user works_at Ikea")),
    Learn("I prefer metric units.", ("user prefers metric units",)),
    Learn("I can't eat gluten.", ("user does_not_eat gluten",)),
    Learn("Viktor speaks Czech and German.", ("Viktor speaks Czech", "Viktor speaks German")),
    Learn("My partner Alex is vegan.", ("user partner Alex", "Alex diet vegan")),
    Learn("I use Neovim.", ("user uses Neovim",)),
]
FRESH_TAKE_BACK = [
    TakeBack(("I work at Ikea.",), "I got laid off from Ikea.", ("user works_at Ikea",)),
    TakeBack(("I work at Ikea.",), "I don't work at Ikea any longer.", ("user works_at Ikea",)),
    TakeBack(("I'm vegetarian.",), "I've stopped being vegetarian.", ("user diet vegetarian",)),
    TakeBack(("I'm pescatarian.",), "Turns out I'm not pescatarian after all.", ("user diet pescatarian",)),
    TakeBack(
        ("I prefer window seats.",),
        "On second thought, I prefer aisle seats.",
        ("user prefers window seats",),
        ("user prefers aisle seats",),
    ),
    TakeBack(
        ("I prefer short answers.", "I prefer tea."),
        "I now prefer detailed answers.",
        ("user prefers short answers",),
        ("user prefers detailed answers", "user prefers tea"),
    ),
    TakeBack(("I use Chrome.",), "I switched from Chrome to Firefox.", ("user uses Chrome",)),
    TakeBack(("I own a canoe.",), "We got rid of our canoe.", ("user owns canoe",)),
    TakeBack(("My partner is called Alex.",), "Alex and I broke up.", ("user partner Alex",)),
    TakeBack(
        ("Carol lives in Boston.",), "Carol moved to Denver.", ("Carol lives_in Boston",), ("Carol lives_in Denver",)
    ),
    TakeBack(("Our API is written in Go.",), "Our API isn't written in Go anymore.", ("API written_in Go",)),
    TakeBack(("I speak Russian.",), "I don't speak Russian.", ("user speaks Russian",)),
    TakeBack(("I don't eat pork.",), "I eat pork now.", ("user does_not_eat pork",)),
]
FRESH_LEAVE = [
    "Would I like Berlin?",
    "I'm not a doctor.",
    "My colleague thinks Bob works at Apple.",
    "Let's pretend I live in Tokyo.",
    "Someone like me works at Google.",
    "In the movie, Jack works at Initech.",
    "I'd love to live in Kyoto.",
    "Once I live in Rome I'll learn Italian.",
    "When I work at Google, I'll buy a car.",
    "Is it true that Alice uses Linux?",
    "I never worked at Enron.",
    "We should move to Postgres.",
    "I'm not at work now.",
    "Summarize: Maria lives in Lima and works at Bembos.",
]

LAST_LEARN = [
    Learn(
        "Quick intro: I'm Tomasz, a backend developer from Gdansk.",
        ("user name Tomasz", "user works_as backend developer", "user from Gdansk"),
    ),
    Learn("I'm gluten-free, and I live in Leeds.", ("user diet gluten-free", "user lives_in Leeds")),
    Learn("My mum lives in Cardiff.", ()),
    Learn("I'm a dentist in Porto.", ("user works_as dentist",)),
    Learn("We moved to Bergen last year.", ("user lives_in Bergen",)),
    Learn("My best friend Ola is a pilot.", ("user best_friend Ola", "Ola works_as pilot")),
    Learn("Globex uses Kubernetes.", ("Globex uses Kubernetes",)),
    Learn("Our database is PostgreSQL.", ("database is PostgreSQL",)),
    Learn("i'm allergic to latex", ("user allergic_to latex",)),
    Learn("I really prefer window seats.", ("user prefers window seats",)),
    Learn("My favourite season is autumn.", ("user favourite_season autumn",)),
    Learn("I own a 2015 Ford Focus.", ("user owns 2015 Ford Focus",)),
    Learn("Petra joined Volvo last month.", ("Petra works_at Volvo",)),
    Learn("I speak fluent Polish and some German.", ("user speaks Polish", "user speaks German")),
    Learn("I'm living in Split these days, working for Infobip.", ("user lives_in Split", "user works_at Infobip")),
]
LAST_TAKE_BACK = [
    TakeBack(
        ("I live in Leeds.",),
        "I no longer live in Leeds, I live in York.",
        ("user lives_in Leeds",),
        ("user lives_in York",),
    ),
    TakeBack(
        ("I'm allergic to latex.",), "The doctor confirmed I'm not allergic to latex.", ("user allergic_to latex",)
    ),
    TakeBack(("I'm a vegan.",), "Forget that I'm vegan.", ("user diet vegan",)),
    TakeBack(("I'm a vegan.",), "I eat fish now.", ("user diet vegan",)),
    TakeBack(("I like sushi.",), "I hate sushi now.", ("user likes sushi",), ("user dislikes sushi",)),
    TakeBack(
        ("I prefer tea.",),
        "I prefer coffee over tea these days.",
        ("user prefers tea",),
        ("user prefers coffee over tea",),
    ),
    TakeBack(("I have a dog named Rex.",), "My dog Rex died.", ("user has_pet Rex",)),
    TakeBack(("My boss is called Hannah.",), "Hannah isn't my boss anymore.", ("user boss Hannah",)),
    TakeBack(("Globex uses Kubernetes.",), "Globex stopped using Kubernetes.", ("Globex uses Kubernetes",)),
    TakeBack(("I work for Infobip.",), "I resigned from Infobip yesterday.", ("user works_at Infobip",)),
    TakeBack(("I own a 2015 Ford Focus.",), "I sold my Ford.", ("user owns 2015 Ford Focus",)),
    TakeBack(("I use Neovim.",), "I don't use Neovim anymore, I use Zed.", ("user uses Neovim",), ("user uses Zed",)),
    TakeBack(("I'm learning Japanese.",), "I gave up learning Japanese.", ("user learning Japanese",)),
]
LAST_LEAVE = [
    "Petra wants to live in Oslo.",
    "Ask Alice whether she works at Acme.",
    "Alice probably lives in Tokyo.",
    "People say Bob works at Apple.",
    "Can I be vegan and work at a steakhouse?",
    "Pretend you live in Rome.",
    "I was allergic to the idea.",
    "The average user prefers dark mode.",
    "Tell me about a man who lives in Oslo.",
    "Next year I live in Vienna, hopefully.",
    "Alice doesn't live here.",
    "I live in hope.",
    "A: I live in Rome. B: I live in Oslo.",
]

REVIEW_TAKE_BACK = [
    TakeBack(("I'm vegetarian.",), "I've started eating meat again.", ("user diet vegetarian",)),
    TakeBack(("I'm a vegan.",), "Being vegan didn't work out for me, so I quit.", ("user diet vegan",)),
    TakeBack(
        ("I'm vegan.",),
        "Correction: I am not vegan, I'm vegetarian.",
        ("user diet vegan",),
        ("user diet vegetarian",),
    ),
    TakeBack(
        ("I prefer dark mode.",),
        "Please note I prefer light mode from now on.",
        ("user prefers dark mode",),
        ("user prefers light mode",),
    ),
    TakeBack(("I prefer dark mode.",), "I don't prefer dark mode any longer.", ("user prefers dark mode",)),
    TakeBack(("I prefer tea.",), "I've switched from tea to coffee.", ("user prefers tea",)),
    TakeBack(
        ("I prefer emails.",),
        "I'd now rather get text messages than emails.",
        ("user prefers emails",),
        ("user prefers text messages over emails",),
    ),
    TakeBack(("I work at Nokia.",), "I was fired from Nokia.", ("user works_at Nokia",)),
    TakeBack(
        ("I work at Nokia.",),
        "I don't work for Nokia now, I'm at Ericsson.",
        ("user works_at Nokia",),
        ("user works_at Ericsson",),
    ),
    TakeBack(
        ("I work at Nokia.",),
        "I left Nokia and joined Bolt as a designer.",
        ("user works_at Nokia",),
        ("user works_at Bolt", "user works_as designer"),
    ),
    TakeBack(("I live in Porto.",), "I moved out of Porto in March.", ("user lives_in Porto",)),
    TakeBack(
        ("I live in Porto.",),
        "I don't live in Porto any more, we moved to Braga.",
        ("user lives_in Porto",),
        ("user lives_in Braga",),
    ),
    TakeBack(("I'm allergic to pollen.",), "I'm not allergic to pollen any more.", ("user allergic_to pollen",)),
    TakeBack(
        ("I'm allergic to penicillin.",),
        "The tests came back: I'm not allergic to penicillin after all.",
        ("user allergic_to penicillin",),
    ),
    TakeBack(
        ("I love jazz.",),
        "I don't enjoy jazz anymore.",
        ("user likes jazz",),
    ),
    TakeBack(
        ("I hate mushrooms.",), "I've come to love mushrooms.", ("user dislikes mushrooms",), ("user likes mushrooms",)
    ),
    TakeBack(("I drive a Skoda.",), "I got rid of the Skoda.", ("user drives Skoda",)),
    TakeBack(("My dog's name is Bruno.",), "Bruno passed away last week.", ("user has_pet Bruno",)),
    TakeBack(("I'm married to Eva.",), "Eva and I are no longer married.", ("user married_to Eva",)),
    TakeBack(
        ("Project Y uses Java 17.",),
        "Project Y switched from Java 17 to Kotlin.",
        ("Project Y uses Java 17",),
        ("Project Y uses Kotlin",),
    ),
    TakeBack(("Maria lives in Lima.",), "Maria no longer lives in Lima, she moved to Cusco.", ("Maria lives_in Lima",)),
    TakeBack(("Maria works at Acme.",), "Maria was laid off from Acme.", ("Maria works_at Acme",)),
    TakeBack(("My favourite band is Muse.",), "Muse is no longer my favourite band.", ("user favourite_band Muse",)),
    TakeBack(
        ("I speak Dutch.", "I'm learning Korean."),
        "I quit learning Korean.",
        ("user learning Korean",),
        ("user speaks Dutch",),
    ),
]
REVIEW_LEARN = [
    Learn(
        "Project Kestrel uses Rust and PostgreSQL.", ("Project Kestrel uses Rust", "Project Kestrel uses PostgreSQL")
    ),
    Learn("We live in Basel and our son Tim is 4 years old.", ("user lives_in Basel", "user son Tim", "Tim age 4")),
    Learn(
        "I'm a vegetarian, allergic to kiwi and living in Turku.",
        ("user diet vegetarian", "user allergic_to kiwi", "user lives_in Turku"),
    ),
    Learn(
        "Project Falcon runs on Python 3.12 and uses Redis.",
        ("Project Falcon runs_on Python 3.12", "Project Falcon uses Redis"),
    ),
    Learn(
        "My colleague Ravi lives in Pune and works at Infosys.",
        ("user colleague Ravi", "Ravi lives_in Pune", "Ravi works_at Infosys"),
    ),
    Learn(
        "Hi! I'm Sofia, I live in Malm\u00f6 with my husband Erik and I'm vegan.",
        ("user name Sofia", "user lives_in Malm\u00f6", "user married_to Erik", "user diet vegan"),
    ),
]
REVIEW_LEAVE = [
    ("I'm a vegan.", "I'm not a strict vegan when I travel."),
    ("I'm a vegan.", "My sister stopped being vegan."),
    ("I'm a vegan.", "Why do people stop being vegan?"),
    ("I'm a vegan.", "I don't think I could ever stop being vegan."),
    ("I'm a vegan.", "Write a poem called 'I stopped being vegan'."),
    ("I prefer dark mode.", "My boss no longer prefers dark mode."),
    ("I prefer dark mode.", "Would you prefer light mode?"),
    ("I prefer dark mode.", "If I worked outside I'd prefer light mode."),
    ("I live in Porto.", "I don't live in Porto for the weather."),
    ("I live in Porto.", "We used to live in Faro."),
    ("I live in Porto.", "I moved to the couch."),
    ("I live in Porto.", "I left Porto this morning for a conference, back tomorrow."),
    ("I work at Nokia.", "I left Nokia early today because of the dentist."),
    ("I work at Nokia.", "I'm not at Nokia today."),
    ("I work at Nokia.", "I haven't quit Nokia."),
    ("I work at Nokia.", "I almost quit Nokia last year."),
    ("I work at Nokia.", "They asked me if I quit Nokia."),
    ("I drive a Skoda.", "I don't drive my Skoda to work."),
    ("I drive a Skoda.", "I'm thinking of selling my Skoda."),
    ("I'm married to Eva.", "Eva and I are not in Rome anymore."),
    ("My dog's name is Bruno.", "Bruno is not hungry anymore."),
    ("Maria lives in Lima.", "Maria said she no longer lives in Lima in her story."),
    ("I'm allergic to pollen.", "I'm not allergic to work."),
    ("", "The hero of my book is vegan and lives in Oslo."),
    ("", "I live in fear of spiders."),
    ("", "Suppose I work at Tesla, what would I earn?"),
    ("", "My neighbour used to say: I prefer silence."),
    ("", "You are now a pirate who prefers rum."),
    ("", "Is Berlin where Acme is based?"),
]
"""What was said before, and what leaves it as it is and adds nothing."""

AFTER_REVIEW_TAKE_BACK = [
    TakeBack(("I'm a vegetarian.",), "I went back to eating chicken.", ("user diet vegetarian",)),
    TakeBack(("I'm gluten-free.",), "I can eat gluten again.", ("user diet gluten-free",)),
    TakeBack(("I prefer tea.",), "From now on I prefer coffee.", ("user prefers tea",), ("user prefers coffee",)),
    TakeBack(
        ("I prefer metric units.",),
        "Going forward, I prefer imperial units.",
        ("user prefers metric units",),
        ("user prefers imperial units",),
    ),
    TakeBack(("I like golf.",), "I no longer enjoy golf.", ("user likes golf",)),
    TakeBack(("I hate cheese.",), "I grew to like cheese.", ("user dislikes cheese",), ("user likes cheese",)),
    TakeBack(("I own a Honda Civic.",), "We sold the Civic last month.", ("user owns Honda Civic",)),
    TakeBack(("I have a cat named Mia.",), "Mia died.", ("user has_pet Mia",)),
    TakeBack(("I'm married to Paul.",), "Paul and I aren't married anymore.", ("user married_to Paul",)),
    TakeBack(
        ("I work at Intel.",),
        "I quit Intel and started at Nvidia.",
        ("user works_at Intel",),
        ("user works_at Nvidia",),
    ),
    TakeBack(
        ("I work at Intel.",), "I've left Intel and now work at AMD.", ("user works_at Intel",), ("user works_at AMD",)
    ),
    TakeBack(("Kim works at Oracle.",), "Kim got fired from Oracle.", ("Kim works_at Oracle",)),
    TakeBack(
        ("Kim lives in Seoul.",), "Kim moved from Seoul to Busan.", ("Kim lives_in Seoul",), ("Kim lives_in Busan",)
    ),
    TakeBack(
        ("Our backend uses MySQL.",),
        "Our backend migrated from MySQL to Postgres.",
        ("backend uses MySQL",),
        ("backend uses Postgres",),
    ),
    TakeBack(("Acme is based in Berlin.",), "Acme isn't based in Berlin anymore.", ("Acme lives_in Berlin",)),
    TakeBack(("I use Slack.",), "I stopped using Slack.", ("user uses Slack",)),
    TakeBack(("My boss is called Ines.",), "Ines is no longer my boss.", ("user boss Ines",)),
]
AFTER_REVIEW_LEARN = [
    Learn(
        "I'm a nurse, lactose intolerant and married to Jo.",
        ("user works_as nurse", "user intolerant_to lactose", "user married_to Jo"),
    ),
    Learn("Our website runs on Django and uses Redis.", ("website runs_on Django", "website uses Redis")),
]
AFTER_REVIEW_LEAVE = [
    ("I'm a vegan.", "I'm not vegan at Christmas."),
    ("I'm a vegan.", "I'm not vegan when my mother cooks."),
    ("I'm a vegan.", "I'm no longer a lonely vegan."),
    ("I work at Intel.", "I left Intel out of the list."),
    ("I work at Intel.", "I don't work at Intel on Fridays."),
    ("I live in Rome.", "I don't live in Rome alone."),
    ("I own a Honda Civic.", "I sold the last ticket."),
    ("I have a cat named Mia.", "Mia died laughing."),
    ("I'm married to Paul.", "Paul and I are not together this weekend."),
    ("I prefer tea.", "She prefers coffee now."),
    ("I prefer tea.", "Which tea do you prefer now?"),
    ("Kim lives in Seoul.", "Kim moved from row two to row five."),
    ("Our backend uses MySQL.", "Should we migrate from MySQL to Postgres?"),
    ("I speak French.", "I don't speak French at work."),
    ("", "My grandfather used to say I live in the clouds."),
    ("", "I've come to love you all."),
    ("", "I'd rather get a taxi than the bus."),
    ("", "He passed away last week."),
]
