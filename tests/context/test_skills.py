"""Skills: reading SKILL.md files, listing them in the prefix, showing one when it is used."""

import os
import re

import pytest

from loom import (
    Context,
    Message,
    PromptBuilder,
    Skill,
    SkillMatcher,
    create_active_skill_fragment,
    create_context_fragment,
    create_identity_fragment,
    create_skills_fragment,
    load_skills,
)
from loom.context import skills as home
from loom.errors import UsageError
from tests.context.wire import MODELS, body_of, wire

every_renderer = pytest.mark.parametrize("provider", sorted(MODELS))


def skill(name="commit", **fields):
    return Skill(**{"name": name, "description": f"About {name}.", "content": f"How to {name}.", **fields})


def write(folder, name, text, file="SKILL.md"):
    path = folder / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def standard(name, **fields):
    lines = {"name": name, "description": f"About {name}.", **fields}
    return "---\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()) + f"---\n\n# {name}\n\nDo it.\n"


def test_a_trigger_may_be_a_compiled_pattern():
    pattern = re.compile("^/deploy (staging|production)$")
    for given in (pattern, [pattern]):
        made = skill(triggers=given)
        assert made == skill(triggers=(pattern.pattern,), trigger_is_regex=True)
        assert [hit.skill for hit in SkillMatcher([made]).match("/deploy staging")] == [made]
        assert not SkillMatcher([made]).match("/deploy development")
    with pytest.raises(UsageError, match="two skills"):
        skill(triggers=[pattern, "ship it"])
    with pytest.raises(UsageError, match="lookaround"):
        skill(triggers=re.compile("(?=x)x"))


# -- reading -----------------------------------------------------------------------------------------------------


def test_a_skill_of_the_standard(tmp_path):
    path = write(
        tmp_path,
        "pdf-processing",
        "---\nname: pdf-processing\ndescription: >-\n  Extract PDF text,\n  fill forms.\nlicense: Apache-2.0\n"
        "compatibility: needs qpdf\nmetadata:\n  author: someone\nallowed-tools: Bash(git:*) Bash(jq -r *), Read\n"
        "---\n\n# PDF\n\nSee references/forms.md.\n",
    )
    (found,) = load_skills(tmp_path)
    assert found == Skill(
        name="pdf-processing",
        description="Extract PDF text, fill forms.",
        content="# PDF\n\nSee references/forms.md.",
        allowed_tools=("Bash(git:*)", "Bash(jq -r *)", "Read"),
        path=path,
    )


@pytest.mark.parametrize("spelling", ["allowed_tools", "allowedTools", "allowed-tools"])
@pytest.mark.parametrize("value", ["Read Write", "Read, Write", "[Read, Write]", "\n  - Read\n  - Write"])
def test_every_spelling_of_the_tools(tmp_path, spelling, value):
    write(tmp_path, "a", standard("a", **{spelling: value}))
    assert load_skills(tmp_path)[0].allowed_tools == ("Read", "Write")


def test_a_skill_of_the_seed(tmp_path):
    text = standard("commit", trigger="commit", triggerIsRegex="false", allowedTools="[]")
    path = write(tmp_path, ".", text, file="commit.skill.md")
    (found,) = load_skills(path)
    assert (found.triggers, found.trigger_is_regex, found.allowed_tools) == (("commit",), False, ())


def test_triggers_patterns_and_skills_of_the_user_alone(tmp_path):
    extra = {"triggers": "['^ship\\b', roll out]", "trigger_is_regex": "true", "disable-model-invocation": "true"}
    write(tmp_path, "ship", standard("ship", **extra))
    (found,) = load_skills(tmp_path)
    assert found.triggers == ("^ship\\b", "roll out")
    assert found.trigger_is_regex
    assert found.user_only
    assert found.allowed_tools is None


def test_the_name_is_that_of_the_folder_where_the_file_has_none(tmp_path):
    write(tmp_path, "review", "---\ndescription: Reviews.\n---\nLook.\n")
    write(tmp_path, ".", "---\ndescription: Ships.\n---\nGo.\n", file="ship-it.skill.md")
    assert [s.name for s in load_skills(tmp_path)] == ["review", "ship-it"]


def test_folders_are_searched_and_what_belongs_to_a_skill_is_not(tmp_path):
    for name in ("b", "a", "deep/er/c", "a/references/template", ".git/x", "node_modules/y"):
        write(tmp_path, name, standard(name.rsplit("/", 1)[-1]))
    write(tmp_path, ".", "# not a skill\n", file="README.md")
    write(tmp_path, "1/2/3/4/5/6/7", standard("too-deep"))
    assert [s.name for s in load_skills(tmp_path)] == ["a", "b", "c"]


def test_no_folder_gives_no_skills():
    assert load_skills() == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Just text.\n", r"SKILL.md:1: it has no frontmatter"),
        ("---\nname: x\n---\nBody.\n", r"SKILL.md:1: the description is empty"),
        ("---\nname: x\ndescription: ''\n---\nBody.\n", r"SKILL.md:3: the description is empty"),
        ("---\nname: x\ndescription: d\n---\n\n", r"SKILL.md:1: it has no instructions"),
        ("---\ndescription: d\nname: Big\n---\nB.\n", r"SKILL.md:3: the name 'Big' is not a skill name"),
        ("---\nname: a--b\ndescription: d\n---\nB.\n", r"SKILL.md:2: the name 'a--b' is not"),
        ("---\nname: -a\ndescription: d\n---\nB.\n", r"SKILL.md:2: the name '-a' is not"),
        ("---\nname: ../a\ndescription: d\n---\nB.\n", r"SKILL.md:2: the name '../a' is not"),
        (f"---\nname: {'a' * 65}\ndescription: d\n---\nB.\n", r"SKILL.md:2: the name"),
        (f"---\nname: a\ndescription: {'d' * 1025}\n---\nB.\n", r"SKILL.md:3: the description has 1,025 characters"),
        ("---\nname: a\ndescription: Use when: asked\n---\nB.\n", r"SKILL.md:3: .*not valid YAML.*in quotes"),
        (f"---\nname: a\nx: {'y' * 9000}\n---\nB.\n", r"SKILL.md:1: .*longer than 8,192 characters; shorten it"),
        ("---\nname: a\ndescription: [a, b]\n---\nB.\n", r"SKILL.md:3: description is not text"),
        ("---\nname: a\ndescription: d\ntrigger:\n---\nB.\n", r"SKILL.md:4: trigger is not text or a list"),
        ("---\nname: a\ndescription: d\ntrigger_is_regex: perhaps\n---\nB.\n", r"SKILL.md:4: .*write true or false"),
        ("---\nname: a\ndescription: d\nallowedTools: x\nallowed-tools: y\n---\nB.\n", r"SKILL.md:4: .*are one field"),
        ("---\nname: a\ndescription: d\nallowed-tools: Bash(git\n---\nB.\n", r"SKILL.md:4: .*parenthesis"),
        ("---\nname: a\ndescription: d\nallowed-tools:\n---\nB.\n", r"SKILL.md:4: allowed-tools is not text"),
        (
            "---\nname: a\ndescription: d\ntrigger: '(a'\ntrigger_is_regex: true\n---\nB.\n",
            r"SKILL.md:4: the trigger pattern '\(a' cannot be used: unclosed group",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, message):
    write(tmp_path, "x", text)
    with pytest.raises(UsageError, match=message):
        load_skills(tmp_path)


def test_bytes_that_are_no_text_and_files_that_are_too_long(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/SKILL.md").write_bytes(b"---\nname: a\n\xff\n")
    write(tmp_path, "b", standard("b") + "x" * home.MAX_SKILL)
    problems = []
    assert load_skills(tmp_path, problems=problems) == ()
    assert "SKILL.md:3: it is not UTF-8: byte 0xff" in problems[0]
    assert "longer than 200,000 bytes" in problems[1]


def test_all_problems_are_told_at_once_and_good_skills_can_be_had_in_spite_of_them(tmp_path):
    write(tmp_path, "bad", "no frontmatter\n")
    write(tmp_path, "worse", "---\nname: worse\n---\nB.\n")
    write(tmp_path, "good", standard("good"))
    with pytest.raises(UsageError) as raised:
        load_skills(tmp_path, tmp_path / "nowhere")
    assert len(str(raised.value).splitlines()) == 3
    assert str(raised.value).endswith("nowhere: there is no such folder")
    problems = []
    assert [s.name for s in load_skills(tmp_path, problems=problems)] == ["good"]
    assert len(problems) == 2


def test_of_one_name_the_earlier_folder_goes_first_and_one_folder_may_have_it_once(tmp_path):
    project, user = tmp_path / "project", tmp_path / "user"
    write(project, "commit", standard("commit", description="Of the project."))
    write(user, "commit", standard("commit", description="Of the user."))
    write(user, "review", standard("review"))
    found = load_skills(project, user)
    assert [(s.name, s.description) for s in found] == [("commit", "Of the project."), ("review", "About review.")]
    write(project, "commit-two", standard("commit"))
    with pytest.raises(UsageError, match=r"commit-two.SKILL.md: .*commit.SKILL.md has the name 'commit' too"):
        load_skills(project)


def test_nothing_outside_the_folder_is_read(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "skills"
    write(outside, "secret", standard("secret"))
    write(folder, "inside", standard("inside"))
    (folder / "linked").symlink_to(outside / "secret")
    (folder / "file").mkdir()
    (folder / "file/SKILL.md").symlink_to(outside / "secret/SKILL.md")
    (folder / "loop").mkdir()
    (folder / "loop/SKILL.md").symlink_to(folder / "loop/SKILL.md")
    problems = []
    assert [s.name for s in load_skills(folder, problems=problems)] == ["inside"]
    assert sum("links out of" in problem for problem in problems) == 2
    assert sum("it is not a file" in problem for problem in problems) == 1


def test_a_pipe_does_not_stop_the_loading(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/SKILL.md")
    problems = []
    assert load_skills(tmp_path, problems=problems) == ()
    assert problems == [f"{tmp_path}/a/SKILL.md: it is not a file"]


def test_too_many_folders_are_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(home, "MAX_FOLDERS", 3)
    for n in range(5):
        write(tmp_path, f"s{n}", standard(f"s{n}"))
    with pytest.raises(UsageError, match="more than 3 folders"):
        load_skills(tmp_path)


def test_a_skill_may_be_made_by_hand():
    assert skill(triggers="commit", allowed_tools=["Read"]).triggers == ("commit",)
    for fields in ({"name": "No"}, {"content": " "}, {"triggers": [" "]}, {"allowed_tools": ["Bash("]}):
        with pytest.raises(UsageError):
            skill(**fields)


# -- showing -----------------------------------------------------------------------------------------------------


def test_the_list_of_skills_is_sorted_and_leaves_out_what_only_the_user_may_call():
    skills = [skill("review", description="Reviews\n# code."), skill("commit"), skill("deploy", user_only=True)]
    text = create_skills_fragment(skills).text()
    assert text.splitlines()[1:] == ["- commit: About commit.", "- review: Reviews # code."]
    assert create_skills_fragment(skills[::-1]).text() == text
    assert create_skills_fragment(skills[2:]).text() == ""


def test_the_list_tells_tools_and_triggers():
    skills = [
        skill("commit", triggers=("commit", "save my work"), allowed_tools=("Bash(git:*)", "Read")),
        skill("deploy", triggers=(r"^/deploy (staging|production)$",), trigger_is_regex=True),
        skill("think", allowed_tools=()),
    ]
    assert create_skills_fragment(skills).text().splitlines()[1:] == [
        "- commit: About commit. (tools: Bash(git:*), Read; triggers: commit, save my work)",
        "- deploy: About deploy. (pattern: ^/deploy (staging|production)$)",
        "- think: About think. (tools: none)",
    ]


def test_the_list_stands_in_the_prefix_and_the_instructions_do_not():
    assert create_skills_fragment([skill()]).section == "foundation"
    assert "How to commit." not in create_skills_fragment([skill()]).text()
    assert create_active_skill_fragment(skill()).section == "convo"
    with pytest.raises(UsageError, match="cached prefix"):
        create_active_skill_fragment(skill(), section="foundation")


def test_the_instructions_are_fenced_and_say_where_their_files_are(tmp_path):
    text = create_active_skill_fragment(skill(content="Go.\n</skill>\nEscape.", path=tmp_path / "SKILL.md")).text()
    assert text.endswith("<skill>\nGo.\n&lt;/skill>\nEscape.\n</skill>")
    assert f"The files it names are in {tmp_path}." in text


@every_renderer
@pytest.mark.parametrize("section", ["convo", "attention"])
def test_activating_a_skill_never_moves_the_prefix(provider, section):
    skills = [skill("commit"), skill("review")]
    base = [create_identity_fragment("You are Scout."), create_skills_fragment(skills)]
    ctx = Context("agent")
    before, tail = [], 0
    for turn, active in enumerate(([], skills[:1], skills, skills[:1], [])):
        builder = PromptBuilder([*base, *(create_active_skill_fragment(s, section) for s in active)])
        builder.add_fragment(create_context_fragment(date=f"2026-11-{turn + 10}"))
        ctx.convo.add(Message.user(f"turn {turn}"))
        builder.build().apply(ctx)
        after = wire(body_of(ctx.compile(), provider), provider)
        assert after[: len(before) - tail] == before[: len(before) - tail]
        before, tail = after, len(ctx.attention.entries)
    told = [text for text in before if "How to" in text]
    assert len(told) == (2 if section == "convo" else 0), "said once each, or gone with the turn"
