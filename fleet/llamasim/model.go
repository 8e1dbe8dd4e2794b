package llamasim

import "strings"

// state is everything the next piece depends on: a hash of the whole context, and
// what the text since the last marker says about where in an answer it stands.
type state struct {
	h uint64 // of every byte so far

	mark  string // the last marker
	calls int    // calls since the last turn began
	hMark uint64 // h right after it
	since int    // tokens after it
	text  string // the text after it, its first sinceMax bytes
	long  bool   // there was more
	last  byte   // last byte of the context

	n      int    // bytes so far
	anchor int    // where a grammar begins; -1: nowhere
	hAt    uint64 // h there
	after  string // the text behind it, its first sinceMax bytes
}

// sinceMax holds the longest call or JSON answer a plan spells.
const sinceMax = 1024

// newState is the state before any text (FNV-1a's offset basis).
func newState() state { return state{h: 0xcbf29ce484222325, anchor: -1} }

func (s *state) write(text string) {
	for i := range len(text) {
		if s.n == s.anchor {
			s.hAt = s.h
		}
		if s.anchor >= 0 && s.n >= s.anchor && len(s.after) < sinceMax {
			s.after += text[i : i+1]
		}
		s.h = (s.h ^ uint64(text[i])) * 0x100000001b3
		s.n++
	}
	s.last = text[len(text)-1]
	if room := sinceMax - len(s.text); len(text) > room {
		s.text += text[:room]
		s.long = true
		return
	}
	s.text += text
}

func (s *state) marked(m string) {
	s.write(m)
	switch m {
	case markStart:
		s.calls = 0
	case markCall:
		s.calls++
	}
	s.mark, s.hMark, s.since, s.text, s.long = m, s.h, 0, "", false
}

// constrained is the state a grammar began in and the text since; ok: one did.
func (s *state) constrained() (h uint64, have string, ok bool) {
	switch {
	case s.anchor < 0 || s.n < s.anchor || len(s.after) == sinceMax:
		return 0, "", false
	case s.n == s.anchor:
		return s.h, "", true
	}
	return s.hAt, s.after, true
}

// model reads a context and writes what follows.
type model struct {
	thinking bool
	plan     *plan

	now    state
	before state  // the state before the last token
	last   string // the last token
}

func newModel(thinking bool, p *plan) *model {
	m := &model{thinking: thinking, plan: p, now: newState(), before: newState()}
	if p != nil && p.anchored {
		m.now.anchor = p.anchor
	}
	return m
}

// read takes the next token of the context. A token that completes a character, or
// a word the model was about to write (grows), belongs to the token before it.
func (m *model) read(t string, grows bool) {
	if grows || partial(m.last) {
		m.now.write(t)
		m.last += t
		return
	}
	m.before, m.last = m.now, t
	if isMark(t) {
		m.now.marked(t)
		return
	}
	m.now.write(t)
	m.now.since++
}

// next is the piece that follows the context: one token, or a whole character that
// takes two. Empty: the answer ends here. grows says the piece completes the last
// token of the context: a stream may end inside a token when a stop string was in
// sight (the rest is held back then), and its continuation must still be exact.
func (m *model) next(ignoreEOS bool) (piece string, grows bool) {
	if piece, end := m.fixed(); piece != "" || end {
		return piece, false
	}
	if m.last != "" && !isMark(m.last) {
		if was := m.before.pick(); len(was) > len(m.last) && strings.HasPrefix(was, m.last) {
			return was[len(m.last):], true
		}
	}
	if !ignoreEOS && m.now.ends() {
		return "", false
	}
	return m.now.pick(), false
}

// fixed is what the template or the plan leaves no choice about.
func (m *model) fixed() (piece string, end bool) {
	s := &m.now
	if h, have, ok := s.constrained(); ok {
		return follow(m.plan.value(h), have, "")
	}
	switch {
	case s.mark == markThink && s.text == "":
		return "\n", false
	case s.mark == markThinkEnd && (s.text == "" || s.text == "\n"):
		return "\n", false
	case s.mark == markThink && s.closes():
		return markThinkEnd, false
	case s.mark == markStart && s.text == assistantHeader && m.thinking:
		return markThink, false
	case s.mark == markCallEnd && m.plan != nil && m.plan.parallel && s.calls == 1:
		return follow("\n", s.text, markCall)
	case s.mark == markCallEnd && s.text == "":
		return "", true
	}
	return m.plan.next(s)
}

// ends decides the end of an answer: about one token in 300, none of the first few.
func (s *state) ends() bool {
	return s.mark != markThink && s.since >= 12 && mix(s.h^saltEnd)%300 == 0
}

// closes decides the end of the reasoning, which always has its newline (streamed
// as reasoning, section 2.7) behind it.
func (s *state) closes() bool {
	return s.since >= 8 && s.last == '\n' && mix(s.h^saltClose)%3 == 0
}

// pick chooses the next piece by the hash. After a letter or a space it takes no
// word without a space of its own: that would merge with what stands before it.
func (s *state) pick() string {
	x := mix(s.h)
	kind, n := x%100, x>>8
	switch {
	case s.mark == markThink && kind < 5:
		return "\n"
	case kind < 62:
		return " " + words[n%uint64(len(words))]
	case kind < 74 && !isLetter(s.last) && s.last != ' ':
		return titles[n%uint64(len(titles))]
	case kind < 86:
		return common[n%uint64(len(common))]
	default:
		return rare[n%uint64(len(rare))]
	}
}

// Salts keep the decisions about one context independent of each other.
const (
	saltEnd   = 0x9e3779b97f4a7c15
	saltClose = 0xd1b54a32d192ed03
	saltPlan  = 0x8cb92ba72f3d8dd7
)

// mix spreads a hash over all its bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
