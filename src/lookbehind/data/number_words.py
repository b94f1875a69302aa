"""Sentences with numbers in words, German and English, by rule: a corpus to try things with, and to test."""

from __future__ import annotations

OPENINGS = (("Ich sehe", "I see"), ("Wir kaufen", "We buy"), ("Sie zählt", "She counts"))
THINGS = (("Hunde", "dogs"), ("Äpfel", "apples"), ("Bücher", "books"), ("Häuser", "houses"), ("Schiffe", "ships"))
NUMBERS = range(2, 1000)  # plural
# fmt: off
GERMAN_ONES = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)
ENGLISH_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on
GERMAN_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
ENGLISH_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def german_number(number: int) -> str:
    """A number below 1000, the ones before the tens: zwei hundert drei und vierzig."""
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        above = f"{'ein' if hundreds == 1 else GERMAN_ONES[hundreds]} hundert"
        return f"{above} {german_number(rest)}" if rest else above
    if number < 20:
        return GERMAN_ONES[number]
    tens, ones = divmod(number, 10)
    before = "" if not ones else "ein und " if ones == 1 else f"{GERMAN_ONES[ones]} und "
    return before + GERMAN_TENS[tens - 2]


def english_number(number: int) -> str:
    """The same in English, the tens before the ones: two hundred forty three."""
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        above = f"{ENGLISH_ONES[hundreds]} hundred"
        return f"{above} {english_number(rest)}" if rest else above
    if number < 20:
        return ENGLISH_ONES[number]
    tens, ones = divmod(number, 10)
    return ENGLISH_TENS[tens - 2] + (f" {ENGLISH_ONES[ones]}" if ones else "")


def number_sentences(count: int) -> list[tuple[str, str]]:
    """So many pairs, all different, such as ``Ich sehe drei Hunde.`` and ``I see three dogs.`` in words."""
    pairs = []
    for i in range(count):
        # 7919 is prime: all sentences there are come by before one comes again
        place = i * 7919 % (len(NUMBERS) * len(OPENINGS) * len(THINGS))
        place, opening = divmod(place, len(OPENINGS))
        number, thing = divmod(place, len(THINGS))
        german = f"{OPENINGS[opening][0]} {german_number(NUMBERS[number])} {THINGS[thing][0]}."
        english = f"{OPENINGS[opening][1]} {english_number(NUMBERS[number])} {THINGS[thing][1]}."
        pairs.append((german, english))
    return pairs
