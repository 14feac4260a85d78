"""What is learnt from what people say in passing, and what is not: sentences of many kinds, none from a data set."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from loom.core.record import Episode, Provenance
from loom.memory._write.extract_rules import RuleExtractor

pytestmark = pytest.mark.anyio
AT = datetime(2026, 1, 14, 12, tzinfo=UTC)


async def learnt(text: str) -> set[str]:
    """The facts that a message gives, without those that it takes back."""
    episode = Episode(id="e1", text=text, at=AT, recorded_at=AT, provenance=Provenance("user"))
    claims = (await RuleExtractor().extract([episode])).claims
    return {f"{c.subject} {c.predicate} {c.object}" for c in claims if c.valid_from and not c.retracts}


LEARNT = {
    # -- said, and corrected in the same breath ---------------------------------------------------------------
    "I work at Acme, sorry, I work at Ajax.": {"user works_at Ajax"},
    "I live in Oslo. Sorry about the delay.": {"user lives_in Oslo"},
    "I live in Oslo. No, thanks.": {"user lives_in Oslo"},
    # -- in front of a question or a request ----------------------------------------------------------------
    "I prefer window seats when I fly, so can you book me one to Oslo?": {"user prefers window seats"},
    "Since I'm vegetarian, what should I order at a steakhouse?": {"user diet vegetarian"},
    "I've been using Notion for my planning lately, any tips?": {"user uses Notion"},
    "As a nurse on night shifts, I hardly see daylight.": {"user works_as nurse"},
    "my sister Anna lives in Lyon, so which train should I take?": {"user sister Anna", "Anna lives_in Lyon"},
    "What can I cook tonight, since I'm allergic to shellfish?": {"user allergic_to shellfish"},
    "I'm a beekeeper in Devon, could you check the weather for Saturday?": {"user works_as beekeeper"},
    "I work at Rolls-Royce, is there a gym near the Derby site?": {"user works_at Rolls-Royce"},
    "Because I have celiac disease, are oats safe for me?": {"user has_condition celiac disease"},
    "We live in Ghent, do you know a good piano tuner here?": {"user lives_in Ghent"},
    "I'm lactose intolerant, so which cheeses can I still eat?": {"user intolerant_to lactose"},
    "I speak Catalan and Spanish, can you recommend a novel in either?": {"user speaks Catalan", "user speaks Spanish"},
    # -- people and animals -----------------------------------------------------------------------------------
    "Can you write down a present for my nephew Idris?": {"user nephew Idris"},
    "My neighbour Mrs Okafor, who is 90, needs a ramp.": {"user neighbour Mrs Okafor"},
    "Could you find a vet for my tortoise, Sheldon?": {"user has_pet Sheldon"},
    "Our husky Balto sheds everywhere.": {"user has_pet Balto"},
    "I have three daughters and a noisy house.": {"user has_children three daughters"},
    "I've got two brothers, both in the navy.": {"user has_siblings two brothers"},
    "Tomorrow I'm seeing my physio with my husband.": {"user family husband"},
    "I'm engaged, and the wedding is in Porto.": {"user marital_status engaged"},
    # -- possessions ------------------------------------------------------------------------------------------
    "How do I tune my upright piano?": {"user owns upright piano"},
    "Please don't use emojis with me ever.": {"user instruction Please don't use emojis with me ever"},
    "I finally bought a cargo bike, which I love.": {"user owns cargo bike"},
    "The cat sleeps on the roof of my sports car.": {"user owns sports car"},
    "The strap of my bass guitar is gone.": {"user owns bass guitar"},
    "The battery of my Nissan Leaf dies in the cold.": {"user owns Nissan Leaf"},
    "I just got a new telescope for the balcony.": {"user owns telescope"},
    "I drive a 2015 Skoda Octavia, what oil does it take?": {"user drives 2015 Skoda Octavia"},
    "my Garmin Forerunner keeps losing the signal": {"user owns Garmin Forerunner"},
    # -- British and American spelling -------------------------------------------------------------------------
    "My favourite colour is teal, so paint the gate in it.": {"user favourite_colour teal"},
    "My favorite color is teal.": {"user favourite_color teal"},
    "I practise the cello every evening.": {"user habit practise the cello every evening"},
    "I practice the cello every evening.": {"user habit practice the cello every evening"},
    "I have hay fever and mild asthma.": {"user has_condition hay fever"},
    # -- lower case, no punctuation, run-on --------------------------------------------------------------------
    "im vegan btw": {"user diet vegan"},
    "i work as a paramedic and im allergic to latex can you suggest gloves": {
        "user works_as paramedic",
        "user allergic_to latex",
    },
    "hey so im a welder and i need new boots any ideas": {"user works_as welder"},
    "i dont eat pork what else goes with cabbage": {"user does_not_eat pork"},
    "i hate cilantro lol": {"user dislikes cilantro"},
    "ok so i have two cats and they keep scratching the sofa": {"user has_pet two cats"},
    # -- study, work, habits, plans ---------------------------------------------------------------------------
    "I graduated from the University of Ghana in 2011.": {"user attended the University of Ghana"},
    "I have a master's degree in Linguistics, for what it's worth.": {"user degree master's degree in Linguistics"},
    "I studied marine biology.": set(),
    "I'm studying law at Leiden University.": {"user studies law", "user studies_at Leiden University"},
    "I work in logistics and travel a lot.": {"user works_in logistics"},
    "I usually swim before work, at 6 am.": set(),
    "I go to choir every Thursday, so not then please.": {"user habit go to choir every Thursday"},
    "I usually get up at 5:30 am on weekdays.": {"user habit get up at 5:30 am on weekdays"},
    "I'm planning a trip to Georgia in May 2027.": {"user plans trip to Georgia in May 2027"},
    "I've got a dentist appointment on Friday, remind me.": {"user plans dentist appointment on Friday"},
    "I was diagnosed with type 2 diabetes last year.": {"user has_condition type 2 diabetes"},
    "I play the accordion in a folk band.": {"user plays accordion"},
    "I'm learning to play the banjo.": {"user learning banjo"},
    "I volunteer at the local food bank.": {"user volunteers_at local food bank"},
    # -- likes and lists ---------------------------------------------------------------------------------------
    "I love rock and roll.": {"user likes rock and roll"},
    "I like sweet and savoury snacks.": {"user likes sweet and savoury snacks"},
    "I love gardening, it's so calming.": {"user likes gardening"},
    "I enjoy knitting, chess and long walks.": {"user likes knitting", "user likes chess", "user likes long walks"},
    "I like the Pomodoro Technique, it's a handy trick.": {"user likes the Pomodoro Technique"},
    "I prefer trains over planes.": {"user prefers trains over planes"},
    # -- instructions -------------------------------------------------------------------------------------------
    'Always write dates as "Month Day, Year" when I ask about deadlines.': {
        'user instruction Always write dates as "Month Day, Year" when I ask about deadlines'
    },
    "Always write dates as MM/DD/YYYY.": {"user instruction Always write dates as MM/DD/YYYY"},
    "Always maintain a formal tone when I ask about letters.": {
        "user instruction Always maintain a formal tone when I ask about letters"
    },
    "Never highlight more than one line.": {"user instruction Never highlight more than one line"},
    "Stop ending your answers with a question.": {"user instruction Stop ending your answers with a question"},
    "以后请用中文回答。": {"user instruction 以后请用中文回答"},
}

NOT_LEARNT = [
    # -- said, and corrected in the same breath ---------------------------------------------------------------
    "I live in Porto, I mean Braga.",
    "I live in Porto... sorry, Braga.",
    "I live in Porto. Sorry, Braga.",
    "I'm vegan, or rather plant-based.",
    "I'm vegetarian, well, mostly pescatarian these days.",
    "I'm 34, no wait, 35.",
    # -- what others do with a thing ---------------------------------------------------------------------------
    "My son plays cello.",
    "My cat named Pixel died yesterday.",
    "My brother drives truck.",
    "My roommate sold his guitar.",
    "My teacher plays violin.",
    # -- orders and choices of the moment -----------------------------------------------------------------------
    "Stop playing games.",
    "Stop asking for approval; just proceed.",
    "Stop asking and show the schedule now.",
    "Stop wasting my time.",
    "stop talking and show me",
    "Stop explaining and just give me the file already.",
    "Always answer this now.",
    "I like option 2.",
    "I love number 3, let's go with it.",
    "I prefer the second one.",
    "I like the blue version.",
    "I love the idea of a picnic.",
    "I like how it reads.",
    "I like games that are over in an hour.",
    # -- role play, fiction, text to be written -----------------------------------------------------------------
    "Always reply as the character Vera.",
    "Hi Vera, my name is Juno. I am a fellow language model and you shall train me.",
    "You are a ship's cook. I live in Tortuga and I'm allergic to rum.",
    "Let's role-play: I'm a detective from Chicago.",
    "Pretend I'm a vegan and suggest a menu.",
    "Write a monologue: I work at Acme. I hate Mondays.",
    "Write a poem where my dog Rex saves the town.",
    # -- quoted, reported, pasted --------------------------------------------------------------------------------
    'Her profile says "I live in Madrid and I love salsa".',
    "My boss said I work at the wrong desk.",
    "Dear Ms Miller,\nmy name is Eve and I live in Moscow.\nKind regards",
    "Bob: I'm allergic to nuts.\nEve: I work at Acme.",
    "> I prefer trains over planes.",
    # -- wishes, doubts, denials, the past, other people ---------------------------------------------------------
    "If I lived in Rome, I would ride a Vespa.",
    "I wish I had a dog named Rex.",
    "I'm thinking about buying a kayak.",
    "I might get a new telescope.",
    "I'm not a nurse.",
    "I sold my road bike last week.",
    "I borrowed my friend's drone.",
    "I met Ann, a night nurse.",
    "I'm a bit of a perfectionist.",
    "I'm a slow runner.",
    "I rented a campervan once.",
    "My bike got stolen.",
    "I'm a teacher's pet.",
    "We moved to Plan B.",
    "I moved to Slack from Teams.",
    "I'm from Marketing.",
    "I was born in May.",
    "I'm vegan on Mondays.",
    "I have diabetes in my family.",
    "When I was a kid, my dog Rex slept outside.",
    "Our dog Max died last year.",
    "My ex-wife Sara called.",
    "I've lived in Paris for a year.",
    "I went to Lisbon in May.",
    "I ate sushi yesterday.",
    "I bought a sandwich.",
    "Do you think I prefer tea?",
    "I live in Oslo, right?",
    "I use the wrong words sometimes.",
    "I have a question about my order.",
    # -- other languages: the rules know English, and orders to the assistant in some others ----------------------
    "Ich wohne in Berlin und arbeite bei Siemens.",
    "Ich bin Vegetarier, was kann ich bestellen?",
    "Mein Hund heißt Rex.",
    "Hör auf zu fragen und mach es einfach.",
    "我住在上海。我对花生过敏。",
    "我的名字是小明。我喜欢爵士乐。",
    "J'habite à Lyon avec ma sœur Anna.",
    "私は東京に住んでいます。",
]


def test_there_are_enough_sentences():
    assert len(LEARNT) + len(NOT_LEARNT) >= 60


@pytest.mark.parametrize("text", LEARNT)
async def test_what_is_said_in_passing_is_learnt(text: str):
    assert await learnt(text) == LEARNT[text]


@pytest.mark.parametrize("text", NOT_LEARNT)
async def test_what_is_not_a_lasting_statement_of_the_user_is_not_learnt(text: str):
    assert await learnt(text) == set()
