package llamasim

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyText leans to what is special to the tokenizer.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOf(rapid.OneOf(
			rapid.String(),
			rapid.SampledFrom(marks[:]),
			rapid.SampledFrom([]string{" ", "a", " abcdefghijkl", "<", "\n", "🦊", "日本", "</think"}),
		)).Draw(t, "parts")
		return strings.ToValidUTF8(strings.Join(parts, ""), "?")
	})
}

func TestTokensHoldTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyText().Draw(t, "text")
		var back strings.Builder
		for _, tok := range tokenize(s) {
			text, ok := tokenText(tok.id)
			if !ok || text != tok.text {
				t.Fatalf("id %d: got %q, want %q", tok.id, text, tok.text)
			}
			back.WriteString(text)
		}
		if back.String() != s {
			t.Fatalf("got %q, want %q", back.String(), s)
		}
	})
}

// TestGeneratedTokensStayApart is why a continuation can be exact: the prompt with
// the answer behind it has the tokens of the prompt, then those generated.
func TestGeneratedTokensStayApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompt := anyText().Draw(t, "prompt")
		m := newModel(rapid.Bool().Draw(t, "thinking"), nil)
		var ids []int32
		for _, tok := range tokenize(prompt) {
			m.read(tok.text, false)
			ids = append(ids, tok.id)
		}
		text := prompt
		for range 40 {
			piece, grows := m.next(true)
			if grows {
				// It completes the last word of the prompt, which is one token then.
				ids = nil
				text += piece
				for _, tok := range tokenize(text) {
					ids = append(ids, tok.id)
				}
				m.read(piece, true)
				continue
			}
			if piece == "" {
				return
			}
			for _, tok := range tokenize(piece) {
				m.read(tok.text, false)
				ids = append(ids, tok.id)
			}
			text += piece
		}
		got := tokenize(text)
		if len(got) != len(ids) {
			t.Fatalf("%q: %d tokens, %d generated", text, len(got), len(ids))
		}
		for i, tok := range got {
			if tok.id != ids[i] {
				t.Fatalf("token %d of %q: got %d, want %d", i, text, tok.id, ids[i])
			}
		}
	})
}

func TestVocabularyMakesNoMarker(t *testing.T) {
	for _, list := range [][]string{titles, common, rare} {
		for _, w := range list {
			for _, m := range marks {
				if len(w) > 1 && strings.Contains(m, w) {
					t.Errorf("%q could become part of %q", w, m)
				}
			}
		}
	}
	if len(words) < 300 {
		t.Errorf("%d words are left", len(words))
	}
}
