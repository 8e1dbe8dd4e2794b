package llamasim

import (
	"strings"
	"unicode/utf8"
)

// token is what one decode yields: an id and the bytes it stands for. The bytes of
// a single token need not be whole characters.
type token struct {
	id   int32
	text string
}

// The markers of the chat template. Each is one token wherever its text appears,
// as llama-server parses special tokens in prompts (section 2.8).
const (
	markBOS      = "<s>"
	markEnd      = "<|im_end|>"
	markStart    = "<|im_start|>"
	markThink    = "<think>"
	markThinkEnd = "</think>"
	markCall     = "<tool_call>"
	markCallEnd  = "</tool_call>"
)

// The layout of ids: markers, halves of characters, whole characters, words.
const (
	wordLetters   = 5 // longest run of letters in one token
	idFirstMark   = 1
	idHead        = 16  // first two bytes of a four-byte character
	idTail        = 336 // its last two bytes
	idRune        = 4432
	idWord        = idRune + 0x10000
	letterDigits  = 52
	vocabularyLen = idWord + 2*(52+52*52+52*52*52+52*52*52*52+52*52*52*52*52)
)

// idMedia is where the ids of images begin, far beyond those of text.
const idMedia = 1 << 30

var marks = [...]string{markBOS, markEnd, markStart, markThink, markThinkEnd, markCall, markCallEnd}

// eosToken ends an answer.
var eosToken = token{id: idFirstMark + 1, text: ""}

func isLetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// markAt is the marker s begins with, if any.
func markAt(s string) string {
	if !strings.HasPrefix(s, "<") {
		return ""
	}
	for _, m := range marks {
		if strings.HasPrefix(s, m) {
			return m
		}
	}
	return ""
}

func isMark(s string) bool { return s != "" && markAt(s) == s }

// tokenize cuts text into tokens: a marker; or up to five letters, with the space
// before them; or half of a four-byte character; or any other single character.
// Text appended later changes no earlier token, except that a run of letters at the
// very end may grow; the model never lets it (see pick) unless it completes a word
// it would have written itself.
func tokenize(s string) []token {
	out := make([]token, 0, len(s)/4+1)
	for len(s) > 0 {
		n := tokenLen(s)
		out = append(out, token{id: tokenID(s[:n]), text: s[:n]})
		s = s[n:]
	}
	return out
}

// tokenLen is the length in bytes of the first token of s, which is not empty.
func tokenLen(s string) int {
	if m := markAt(s); m != "" {
		return len(m)
	}
	n := 0
	if s[0] == ' ' && len(s) > 1 && isLetter(s[1]) {
		n = 1
	}
	letters := n
	for letters < len(s) && letters < n+wordLetters && isLetter(s[letters]) {
		letters++
	}
	if letters > n {
		return letters
	}
	switch _, size := utf8.DecodeRuneInString(s); size {
	case 4:
		return 2
	case 1:
		// The second half of a four-byte character comes alone in generated text.
		if s[0] >= 0x80 && len(s) >= 2 && s[1] >= 0x80 {
			return 2
		}
		return 1
	default:
		return size
	}
}

// tokenID numbers a token by computation, so that any text has ids, all servers
// agree on them, and they can be turned back.
func tokenID(s string) int32 {
	for i, m := range marks {
		if s == m {
			return int32(idFirstMark + i)
		}
	}
	word := strings.TrimPrefix(s, " ")
	if word != "" && isLetter(word[0]) {
		n := int32(0)
		for i := range len(word) {
			n = n*letterDigits + letterDigit(word[i])
		}
		n = (n - 1) * 2
		if word != s {
			n++
		}
		return idWord + n
	}
	r, size := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && size <= 1 && len(s) == 2 {
		if s[0] >= 0xF0 {
			return idHead + int32(s[0]-0xF0)*64 + int32(s[1]&0x3F)
		}
		return idTail + int32(s[0]&0x3F)*64 + int32(s[1]&0x3F)
	}
	return idRune + r&0xFFFF
}

// letterDigit is 1..52, so that no word is another one with a leading zero.
func letterDigit(b byte) int32 {
	if b >= 'a' {
		return int32(b-'a') + 1
	}
	return int32(b-'A') + 27
}

// tokenText turns an id back; false: no token has it.
func tokenText(id int32) (string, bool) {
	switch {
	case id < idFirstMark || id >= vocabularyLen:
		return "", false
	case int(id) < idFirstMark+len(marks):
		return marks[id-idFirstMark], true
	case id < idHead:
		return "", false
	case id < idTail:
		return string([]byte{0xF0 + byte((id-idHead)/64), 0x80 | byte((id-idHead)%64)}), true
	case id < idRune:
		return string([]byte{0x80 | byte((id-idTail)/64), 0x80 | byte((id-idTail)%64)}), true
	case id < idWord:
		return string(id - idRune), true
	}
	n := (id - idWord) / 2
	word := ""
	for n++; n > 0; n = (n - 1) / letterDigits {
		d := (n - 1) % letterDigits
		if d < 26 {
			word = string('a'+d) + word
		} else {
			word = string('A'+d-26) + word
		}
	}
	if (id-idWord)%2 == 1 {
		word = " " + word
	}
	return word, true
}

// partial reports whether s ends inside a character.
func partial(s string) bool {
	for i := 1; i <= 3 && i <= len(s); i++ {
		if b := s[len(s)-i]; utf8.RuneStart(b) {
			return !utf8.FullRuneInString(s[len(s)-i:])
		}
	}
	return false
}
