"""Questions in the language of the records: German, Chinese, Japanese."""

import pytest

from loom.engine import open_memory

pytestmark = pytest.mark.anyio

GERMAN = {
    "Wo arbeite ich?": "Ich arbeite seit drei Jahren als Krankenschwester in einer Klinik in Graz.",
    "Wie hei\u00dft mein Hund?": "Mein Hund hei\u00dft Bello und ist vier Jahre alt.",
    "Welche Farbe hat mein Auto?": "Unser Auto ist ein gr\u00fcner Volvo, die Farbe mag nicht jeder.",
    "Wogegen bin ich allergisch?": "Leider bin ich allergisch gegen Haseln\u00fcsse.",
    "Wann habe ich Geburtstag?": "Meinen Geburtstag feiere ich am 7. M\u00e4rz immer im Garten.",
    "Was trinke ich am Morgen?": "Am Morgen trinke ich nur Tee mit Zitrone.",
    "Welches Instrument spielt meine Schwester?": "Meine Schwester Anna spielt Cello, ihr Instrument ist sehr alt.",
    "Wohin fahren wir im Sommer?": "Im Sommer fahren wir mit dem Zug nach Triest.",
    "Wie ist der Code f\u00fcr das Tor?": "Der Code f\u00fcr das Tor ist 4711.",
    "Welches Buch lese ich gerade?": "Ich lese gerade ein Buch \u00fcber die Alpen von Messner.",
}
CHINESE = {
    "\u6211\u5728\u54ea\u91cc\u5de5\u4f5c\uff1f": "\u6211\u5728\u4e0a\u6d77\u7684\u4e00\u5bb6\u533b\u9662\u5de5\u4f5c\uff0c\u662f\u62a4\u58eb\u3002",
    "\u6211\u7684\u72d7\u53eb\u4ec0\u4e48\u540d\u5b57\uff1f": "\u6211\u7684\u72d7\u540d\u5b57\u53eb\u5c0f\u767d\uff0c\u56db\u5c81\u4e86\u3002",
    "\u6211\u7684\u8f66\u662f\u4ec0\u4e48\u989c\u8272\uff1f": "\u6211\u4e70\u4e86\u4e00\u8f86\u7eff\u8272\u7684\u8f66\uff0c\u989c\u8272\u5f88\u7279\u522b\u3002",
    "\u6211\u5bf9\u4ec0\u4e48\u8fc7\u654f\uff1f": "\u6211\u5bf9\u82b1\u751f\u8fc7\u654f\uff0c\u4e0d\u80fd\u5403\u3002",
    "\u6211\u7684\u751f\u65e5\u662f\u54ea\u5929\uff1f": "\u6211\u7684\u751f\u65e5\u662f\u4e09\u6708\u4e03\u53f7\u3002",
    "\u6211\u65e9\u4e0a\u559d\u4ec0\u4e48\uff1f": "\u65e9\u4e0a\u6211\u53ea\u559d\u67e0\u6aac\u8336\u3002",
    "\u6211\u59d0\u59d0\u5b66\u4ec0\u4e48\u4e50\u5668\uff1f": "\u6211\u59d0\u59d0\u5728\u5b66\u5927\u63d0\u7434\uff0c\u90a3\u662f\u5979\u6700\u559c\u6b22\u7684\u4e50\u5668\u3002",
    "\u590f\u5929\u6211\u4eec\u53bb\u54ea\u91cc\u65c5\u6e38\uff1f": "\u590f\u5929\u6211\u4eec\u5750\u706b\u8f66\u53bb\u9752\u5c9b\u65c5\u6e38\u3002",
    "\u5927\u95e8\u7684\u5bc6\u7801\u662f\u591a\u5c11\uff1f": "\u5927\u95e8\u7684\u5bc6\u7801\u6539\u6210\u4e86 4711\u3002",
    "\u6211\u6700\u8fd1\u5728\u770b\u4ec0\u4e48\u4e66\uff1f": "\u6211\u6700\u8fd1\u5728\u770b\u4e00\u672c\u5173\u4e8e\u897f\u85cf\u7684\u4e66\u3002",
}
JAPANESE = {
    "\u79c1\u306e\u4ed5\u4e8b\u306f\u4f55\u3067\u3059\u304b\uff1f": "\u79c1\u306e\u4ed5\u4e8b\u306f\u770b\u8b77\u5e2b\u3067\u3001\u5927\u962a\u306e\u75c5\u9662\u306b\u3044\u307e\u3059\u3002",
    "\u72ac\u306e\u540d\u524d\u306f\u4f55\u3067\u3059\u304b\uff1f": "\u72ac\u306e\u540d\u524d\u306f\u30dd\u30c1\u3067\u3059\u3002",
    "\u8eca\u306f\u4f55\u8272\u3067\u3059\u304b\uff1f": "\u8eca\u306f\u7dd1\u8272\u306e\u30dc\u30eb\u30dc\u3067\u3059\u3002",
    "\u4f55\u306e\u30a2\u30ec\u30eb\u30ae\u30fc\u304c\u3042\u308a\u307e\u3059\u304b\uff1f": "\u30d4\u30fc\u30ca\u30c3\u30c4\u306e\u30a2\u30ec\u30eb\u30ae\u30fc\u304c\u3042\u308a\u307e\u3059\u3002",
    "\u8a95\u751f\u65e5\u306f\u3044\u3064\u3067\u3059\u304b\uff1f": "\u8a95\u751f\u65e5\u306f\u4e09\u6708\u4e03\u65e5\u3067\u3059\u3002",
    "\u671d\u306f\u4f55\u3092\u98f2\u307f\u307e\u3059\u304b\uff1f": "\u671d\u306f\u30ec\u30e2\u30f3\u30c6\u30a3\u30fc\u3060\u3051\u3092\u98f2\u307f\u307e\u3059\u3002",
    "\u59c9\u306f\u4f55\u306e\u697d\u5668\u3092\u5f3e\u304d\u307e\u3059\u304b\uff1f": "\u59c9\u306f\u30c1\u30a7\u30ed\u3068\u3044\u3046\u697d\u5668\u3092\u5f3e\u304d\u307e\u3059\u3002",
    "\u590f\u4f11\u307f\u306f\u3069\u3053\u3078\u884c\u304d\u307e\u3059\u304b\uff1f": "\u590f\u4f11\u307f\u306f\u5317\u6d77\u9053\u3078\u884c\u304d\u307e\u3059\u3002",
    "\u9580\u306e\u6697\u8a3c\u756a\u53f7\u306f\u4f55\u756a\u3067\u3059\u304b\uff1f": "\u9580\u306e\u6697\u8a3c\u756a\u53f7\u306f 4711 \u3067\u3059\u3002",
    "\u4eca\u8aad\u3093\u3067\u3044\u308b\u672c\u306f\u4f55\u3067\u3059\u304b\uff1f": "\u4eca\u306f\u30a2\u30eb\u30d7\u30b9\u306e\u672c\u3092\u8aad\u3093\u3067\u3044\u307e\u3059\u3002",
}


@pytest.mark.parametrize("told", [GERMAN, CHINESE, JAPANESE], ids=["german", "chinese", "japanese"])
@pytest.mark.parametrize("as_messages", [False, True])
async def test_a_question_finds_its_record_first_in_eight_of_ten(tmp_path, told, as_messages):
    async with open_memory(f"sqlite:{tmp_path}/m.db", with_facts=False) as memory:
        for text in told.values():
            said = {"role": "user", "content": text} if as_messages else text
            await memory.remember(said, user_id="u", session_id="s" if as_messages else None)
        first = [(await memory.recall(question, user_id="u")).hits[0].item.text for question in told]
    right = sum(found == text for found, text in zip(first, told.values(), strict=True))
    assert right >= 8, [pair for pair in zip(first, told.values(), strict=True) if pair[0] != pair[1]]
