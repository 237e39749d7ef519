"""The counts of tests/prose.py, and the documents' rate of verbs of speech for machines."""

from tests import prose


def test_a_verb_of_speech_is_counted_where_it_is_no_code() -> None:
    text = "The node says it.\n```\nsays\n```\n`asks` is a name;\nit looks at a taint.\n"
    words, found = prose.idiom(text)
    assert found == [(1, "says"), (6, "looks at")]
    assert words == 12


def test_a_verb_of_speech_is_counted_in_docstrings_and_comments() -> None:
    source = (
        '"""The node says it."""\n\nsaid = "he says"  # asked of `ask`\n# one line\n# tells two\n'
    )
    words, found = prose.idiom_of_comments(source)
    assert found == [(1, "says"), (3, "asked"), (3, "tells")]
    assert words == 10


def test_a_verb_of_speech_is_counted_in_names_and_strings_of_code() -> None:
    source = (
        '"""It says so."""\nMOST_TOLD = 1\nclass AskRules:\n    look: int\n'
        'def beside(heard, outlook): self.said = f"it stands {heard} there" + "a standard"\n'
    )
    found = prose.idiom_in_code(source)
    assert sorted(found) == [
        (2, "MOST_TOLD"),
        (3, "AskRules"),
        (4, "look"),
        (5, "beside"),
        (5, "heard"),
        (5, "it stands"),
        (5, "said"),
    ]


def test_docs_has_at_most_90000_words_without_its_code() -> None:
    pages = [path for path in prose.documents() if (prose.ROOT / "docs") in path.parents]
    words = sum(prose.idiom(path.read_text())[0] for path in pages)
    assert 50_000 < words <= 90_000, "a page that grows replaces other words"


def test_a_clause_without_a_noun_is_found() -> None:
    assert prose.is_nounless("Whoever gives up has cost it a handshake")
    assert not prose.is_nounless("What is a lemon?")
