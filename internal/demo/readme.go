package demo

// Readme is written beside the demo's data: what the task is, what the
// teacher's style is, and how answers are graded.
const Readme = `# The demo's task

Small questions about letters and digits, and a teacher who answers them rightly
and always in the same style. The student sees only the teacher's answers.

| kind    | a question              | the solution | the teacher's step of work              |
|---------|-------------------------|--------------|-----------------------------------------|
| last    | Last letter of t a c o? | o            | how many letters there are              |
| largest | Largest of 4 9 2 7?     | 9            | which of the first two digits is larger |
| reverse | Reverse: t a c o        | o c a t      | the letter that comes first             |
| sort    | Sort: t a c o           | a c o t      | the letter that comes first             |
| add     | Add 4+7+3               | 14           | the sum of the first two digits         |

Each kind is asked in four wordings. The kinds take turns, so every fifth row is
of the same kind.

## The teacher's style

    Good question! Reading t a c o backwards, o comes first. So the answer is o c a t.

1. An opening, drawn at random: "Sure!", "Let me see.", "Good question!" or
   "Happy to help." Nothing in the question tells which.
2. One sentence that repeats the question's letters or digits and shows one step
   of work. Each kind has two wordings, again drawn at random.
3. The signature: "So the answer is", the solution, a full stop. Nothing follows.

There are thus eight equally good ways to answer any question. A student that
copies the teacher's text has to spread over all eight; one that plays against a
discriminator may keep to a few of them and do those well.

## Held-out questions

The test questions are about problems that no training question is about, in any
wording and under any seed: a hash of the problem (the kind and its letters or
digits, not the words around them) decides the side. For largest, sort and add
the order of the letters or digits does not enter the hash, so "Add 4+7+3" and
"Add 7+4+3" stand on the same side.

## How an answer is graded

- Exact answers: what follows the first "So the answer is " must be the solution,
  spelled as the teacher spells it, and a full stop, and the answer must end there.
  A right solution without the signature does not count.
- Teacher's format: the whole answer, byte for byte, must be one of the teacher's
  openings, one of the teacher's middle sentences for this kind of question and
  the signature, with letters where letters belong and a number where a number
  belongs. Whether they are the right ones is not looked at: that is what "exact"
  is for.

Nothing is trimmed, and case and spaces count. The teacher itself scores 100 % on
both.
`
