package llamasim

import (
	"encoding/json"
	"net/http"
	"strings"
	"unicode/utf8"
)

// The routes here turn text to tokens and messages to text, and take no slot
// (section 1.7).

func (in *instance) serveTokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	fields, err := parseBody(body)
	if err != nil {
		return err
	}
	var addSpecial, withPieces bool
	if err := firstError(get(fields, "add_special", &addSpecial)); err != nil {
		return err
	}
	if err := firstError(get(fields, "with_pieces", &withPieces)); err != nil {
		return err
	}
	tokens := []token{}
	if raw, ok := fields["content"]; ok {
		parts := []json.RawMessage{raw}
		_ = json.Unmarshal(raw, &parts)
		p, err := parsePrompt(parts)
		if err != nil {
			return serverError(err.Error())
		}
		tokens = p.tokens
		if !addSpecial && len(tokens) > 0 && tokens[0].text == markBOS {
			tokens = tokens[1:]
		}
	}
	list := []any{}
	for _, t := range tokens {
		if withPieces {
			list = append(list, fieldList{{"id", t.id}, {"piece", pieceOf(t.text)}})
		} else {
			list = append(list, t.id)
		}
	}
	writeJSON(w, http.StatusOK, fieldList{{"tokens", list}})
	return nil
}

// pieceOf is the text of a token, or its bytes if they are not a whole character.
func pieceOf(text string) any {
	if utf8.ValidString(text) {
		return text
	}
	raw := []int{}
	for i := range len(text) {
		raw = append(raw, int(text[i]))
	}
	return raw
}

func (in *instance) serveDetokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	fields, err := parseBody(body)
	if err != nil {
		return err
	}
	var ids []int32
	if json.Unmarshal(fields["tokens"], &ids) != nil && fields["tokens"] != nil {
		return serverError("[json.exception.type_error.302] type must be number, but is string")
	}
	var content strings.Builder
	for _, id := range ids {
		t, _ := tokenText(id)
		content.WriteString(t)
	}
	writeJSON(w, http.StatusOK, fieldList{{"content", strings.ToValidUTF8(content.String(), "\uFFFD")}})
	return nil
}

func (in *instance) serveTemplate(w http.ResponseWriter, _ *http.Request, body []byte) error {
	_, _, p, err := in.chatPrompt(body, chatSurface)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, fieldList{{"prompt", p.text}})
	return nil
}

// countTokens tells the length of a conversation's prompt; OpenAI's form says what
// kind of object it is.
func (in *instance) countTokens(s surface, object bool) postHandler {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) error {
		_, _, p, err := in.chatPrompt(body, s)
		if err != nil {
			return err
		}
		out := fieldList{{"input_tokens", len(p.tokens())}}
		if object {
			out = append(out, field{"object", "response.input_tokens"})
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	}
}
