package llamasim

import (
	"strconv"
	"strings"
)

// A grammar in llama.cpp's notation (GBNF), as far as tests need it: rules, texts,
// classes of characters without negation, groups, alternatives and the repetitions
// * + ? {n,m}. The stand-in does not parse with it; it writes one text of it.

// grammarRules are the alternatives of each rule.
type grammarRules map[string][]sequence

// sequence is one alternative.
type sequence []repeated

// repeated is a part of a sequence and how often it may come.
type repeated struct {
	least, most int
	text        string     // a literal
	class       []rune     // one of these
	rule        string     // a rule's name
	group       []sequence // alternatives in parentheses
}

// parseGrammar reads a grammar; false: it is none, or beyond the above.
func parseGrammar(text string) (grammarRules, bool) {
	rules := grammarRules{}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, body, ok := strings.Cut(line, "::=")
		if !ok {
			return nil, false
		}
		p := &grammarParser{rest: strings.TrimSpace(body)}
		alternatives := p.alternatives()
		if p.bad || p.rest != "" {
			return nil, false
		}
		rules[strings.TrimSpace(name)] = alternatives
	}
	return rules, rules["root"] != nil && rules.complete()
}

// complete reports whether every rule that is named is there.
func (r grammarRules) complete() bool {
	var known func([]sequence) bool
	known = func(list []sequence) bool {
		for _, s := range list {
			for _, e := range s {
				if e.rule != "" && r[e.rule] == nil || !known(e.group) {
					return false
				}
			}
		}
		return true
	}
	for _, list := range r {
		if !known(list) {
			return false
		}
	}
	return true
}

type grammarParser struct {
	rest  string
	depth int // of groups
	bad   bool
}

// grammarGroups is how deep groups may stand in each other.
const grammarGroups = 100

func (p *grammarParser) alternatives() []sequence {
	list := []sequence{p.sequence()}
	for !p.bad && strings.HasPrefix(p.rest, "|") {
		p.skip(1)
		list = append(list, p.sequence())
	}
	return list
}

func (p *grammarParser) skip(n int) { p.rest = strings.TrimLeft(p.rest[n:], " \t") }

func (p *grammarParser) sequence() sequence {
	var s sequence
	for !p.bad && p.rest != "" && p.rest[0] != '|' && p.rest[0] != ')' {
		s = append(s, p.part())
	}
	return s
}

func (p *grammarParser) part() repeated {
	e := repeated{least: 1, most: 1}
	switch p.rest[0] {
	case '"':
		n := endOf(p.rest, '"')
		text, err := strconv.Unquote(p.rest[:n])
		p.bad = n == 0 || err != nil
		e.text = text
		p.skip(n)
	case '[':
		n := endOf(p.rest, ']')
		if n < 3 {
			p.bad = true
			return e
		}
		e.class = classOf(p.rest[1 : n-1])
		p.bad = len(e.class) == 0
		p.skip(n)
	case '(':
		p.skip(1)
		if p.depth++; p.depth > grammarGroups {
			p.bad = true
			return e
		}
		e.group = p.alternatives()
		p.depth--
		if !strings.HasPrefix(p.rest, ")") {
			p.bad = true
			return e
		}
		p.skip(1)
	default:
		n := 0
		for n < len(p.rest) && (isLetter(p.rest[n]) || p.rest[n] == '-' || '0' <= p.rest[n] && p.rest[n] <= '9') {
			n++
		}
		e.rule = p.rest[:n]
		p.bad = n == 0
		p.skip(n)
	}
	if !p.bad {
		p.repetition(&e)
	}
	return e
}

func (p *grammarParser) repetition(e *repeated) {
	if p.rest == "" {
		return
	}
	switch p.rest[0] {
	case '*':
		e.least, e.most = 0, 4
	case '+':
		e.least, e.most = 1, 4
	case '?':
		e.least, e.most = 0, 1
	case '{':
		n := endOf(p.rest, '}')
		if n < 3 {
			p.bad = true
			return
		}
		least, most, ranged := strings.Cut(p.rest[1:n-1], ",")
		var err1, err2 error
		e.least, err1 = strconv.Atoi(strings.TrimSpace(least))
		e.most = e.least
		if ranged {
			if most = strings.TrimSpace(most); most == "" {
				e.most = e.least + 3
			} else {
				e.most, err2 = strconv.Atoi(most)
			}
		}
		p.bad = err1 != nil || err2 != nil || e.least < 0 || e.most < e.least || e.most > 1000
		p.skip(n)
		return
	default:
		return
	}
	p.skip(1)
}

// endOf is the length of s up to the first unescaped end behind its first byte; 0:
// there is none.
func endOf(s string, end byte) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case end:
			return i + 1
		}
	}
	return 0
}

// classOf lists the characters of a class; none: it is negated or wrong.
func classOf(s string) []rune {
	text, err := strconv.Unquote("\"" + strings.ReplaceAll(s, "\"", "\\\"") + "\"")
	if err != nil || strings.HasPrefix(text, "^") {
		return nil
	}
	var out []rune
	list := []rune(text)
	for i := 0; i < len(list); i++ {
		if i+2 >= len(list) || list[i+1] != '-' {
			out = append(out, list[i])
			continue
		}
		if list[i+2] < list[i] || list[i+2]-list[i] > 0x10000 {
			return nil
		}
		for r := list[i]; r <= list[i+2]; r++ {
			out = append(out, r)
		}
		i += 2
	}
	return out
}

// Bounds for rules that name themselves and repetitions of repetitions: below the
// depth the first alternative is taken and nothing is repeated, far below it, and
// after so many steps, everything ends.
const (
	grammarDepth = 24
	grammarSteps = 4096
)

// write chooses one text of a grammar by h.
func (r grammarRules) write(h uint64) string {
	w := grammarWriter{rules: r, h: h}
	w.choose(r["root"], 0)
	return w.b.String()
}

type grammarWriter struct {
	rules grammarRules
	b     strings.Builder
	h     uint64
	steps int
}

// pick is one of n, the next that h leads to.
func (w *grammarWriter) pick(n int) int {
	w.h = mix(w.h + saltPlan)
	return int(w.h % uint64(n))
}

func (w *grammarWriter) over(depth int) bool {
	w.steps++
	return depth > 2*grammarDepth || w.steps > grammarSteps || w.b.Len() > sinceMax/2
}

func (w *grammarWriter) choose(list []sequence, depth int) {
	if len(list) == 0 || w.over(depth) {
		return
	}
	one := list[0]
	if depth <= grammarDepth {
		one = list[w.pick(len(list))]
	}
	for _, e := range one {
		times := e.least
		if depth <= grammarDepth {
			times += w.pick(e.most - e.least + 1)
		}
		for range times {
			if w.over(depth) {
				return
			}
			switch {
			case e.class != nil:
				w.b.WriteRune(e.class[w.pick(len(e.class))])
			case e.rule != "":
				w.choose(w.rules[e.rule], depth+1)
			case e.group != nil:
				w.choose(e.group, depth+1)
			default:
				w.b.WriteString(e.text)
			}
		}
	}
}
