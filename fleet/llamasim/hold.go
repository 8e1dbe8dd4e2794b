package llamasim

import (
	"strings"
	"unicode/utf8"
)

// unit is generated text that is ready to be shown; a marker stands alone.
type unit struct {
	text string
	mark bool
}

// show takes a token's bytes in and returns the text that may be shown now: whole
// characters, and nothing while the end may turn out to be a stop string (section 0.11).
func (g *gen) show(text string) []unit {
	g.text += text
	if partial(g.text) {
		return nil
	}
	// Half a character whose first half is in the prompt, as ids, is no text.
	shown := strings.ToValidUTF8(g.text, "\uFFFD")
	g.held = append(g.held, unit{shown, isMark(shown)})
	g.text = ""
	if len(g.job.q.stop) == 0 {
		return g.flush()
	}
	var all strings.Builder
	for _, u := range g.held {
		all.WriteString(u.text)
	}
	safe, word := safeLength(all.String(), g.job.q.stop)
	if word == "" && safe < all.Len() {
		return nil
	}
	out := firstUnits(g.held, safe)
	g.held = nil
	if word != "" {
		g.stopType, g.stopWord = "word", word
	}
	return out
}

func (g *gen) flush() []unit {
	out := g.held
	g.held = nil
	return out
}

// safeLength is how much of s is before the first stop string, or before what may
// become one; word is the stop string found.
func safeLength(s string, stops []string) (n int, word string) {
	n = len(s)
	for _, stop := range stops {
		if i := strings.Index(s, stop); i >= 0 && (i < n || word == "") {
			n, word = i, stop
		}
	}
	if word != "" {
		return n, word
	}
	for _, stop := range stops {
		for k := min(len(stop)-1, len(s)); k > 0; k-- {
			if strings.HasSuffix(s, stop[:k]) {
				n = min(n, len(s)-k)
				break
			}
		}
	}
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return n, ""
}

// firstUnits is the first n bytes of them.
func firstUnits(units []unit, n int) (head []unit) {
	for _, u := range units {
		switch {
		case n >= len(u.text):
			head = append(head, u)
			n -= len(u.text)
		case n > 0:
			return append(head, unit{text: u.text[:n]})
		default:
			return head
		}
	}
	return head
}
