package llamasim

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

const someGrammar = `
# a comment
root   ::= greet ", " name ("!" | "?")? digit{2,4}
greet  ::= "hello" | "good " ("day" | "night")
name   ::= [A-C] [a-z]+
digit  ::= [0-9]
`

var someLanguage = regexp.MustCompile(`^(hello|good (day|night)), [A-C][a-z]{1,4}[!?]?[0-9]{2,4}$`)

func TestGrammarIsObeyed(t *testing.T) {
	rules, ok := parseGrammar(someGrammar)
	if !ok {
		t.Fatal("the grammar was not understood")
	}
	seen := map[string]bool{}
	for h := range uint64(200) {
		text := rules.write(mix(h))
		if !someLanguage.MatchString(text) {
			t.Fatalf("%q is not of the language", text)
		}
		seen[text] = true
	}
	if len(seen) < 50 {
		t.Errorf("only %d different texts", len(seen))
	}
	for _, wrong := range []string{
		"", "root = \"x\"", "root ::= nobody", "root ::= \"x", "root ::= (\"x\"", "other ::= \"x\"", "root ::= [^a]", "root ::= \"x\"{3,1}", "root ::= [z-a]",
		"root ::= " + strings.Repeat("(", 1000) + "\"x\"" + strings.Repeat(")", 1000),
	} {
		if _, ok := parseGrammar(wrong); ok {
			t.Errorf("%q was taken for a grammar", wrong)
		}
	}
	if rules, ok := parseGrammar("root ::= \"(\" root \")\" | \"x\""); !ok || len(rules.write(1)) > sinceMax {
		t.Error("a rule that names itself must end")
	}
}

func FuzzGrammar(f *testing.F) {
	f.Add(someGrammar, uint64(1))
	f.Add("root ::= \"(\" root \")\" | \"x\"", uint64(2))
	f.Add("root ::= [^a-", uint64(3))
	f.Add("root ::= (((root{9} \"\"){99}){99}){99}", uint64(4))
	f.Fuzz(func(t *testing.T, text string, h uint64) {
		rules, ok := parseGrammar(text)
		if !ok {
			return
		}
		if a, b := rules.write(h), rules.write(h); a != b {
			t.Errorf("got %q and %q of the same", a, b)
		}
	})
}

// TestTextGoesOnInAGrammar is section 2.6's rows of plain completions.
func TestTextGoesOnInAGrammar(t *testing.T) {
	s := start(t, Options{})
	schema := dict{"type": "object", "properties": dict{"a": dict{"type": "string"}, "b": dict{"type": "boolean"}}}
	for name, c := range map[string]struct{ body, more dict }{
		"schema":  {dict{"json_schema": schema}, dict{}},
		"grammar": {dict{"grammar": someGrammar}, dict{"grammar_type": "tool_calls"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.body["prompt"] = "Say: "
			whole := ask(t, s, "/completion", c.body).content
			if name == "schema" && !json.Valid([]byte(whole)) || name == "grammar" && !someLanguage.MatchString(whole) {
				t.Fatalf("got %q", whole)
			}
			for cut := 1; cut < len(whole); cut++ {
				if whole[cut]&0xC0 == 0x80 {
					continue
				}
				body := dict{"prompt": "Say: " + whole[:cut], "generation_prompt": whole[:cut]}
				for _, m := range []dict{c.body, c.more} {
					for k, v := range m {
						if k != "prompt" {
							body[k] = v
						}
					}
				}
				if got := ask(t, s, "/completion", body).content; whole[:cut]+got != whole {
					t.Fatalf("cut at %d: got %q, want the rest of %q", cut, got, whole)
				}
				delete(body, "generation_prompt")
				if got := ask(t, s, "/completion", body).content; whole[:cut]+got == whole {
					t.Fatalf("cut at %d: it knew what was generated", cut)
				}
			}
		})
	}
}

func TestGrammarBeginsAnewInAChat(t *testing.T) {
	s := start(t, Options{})
	body := dict{"messages": user("hello"), "grammar": someGrammar}
	whole := ask(t, s, chatPath, body).content
	again := ask(t, s, chatPath, continuation(body, "", whole[:3])).content
	if !someLanguage.MatchString(whole) || !someLanguage.MatchString(again) {
		t.Errorf("got %q, then %q", whole, again)
	}
	for _, c := range []struct {
		body dict
		want string
	}{
		{dict{"messages": user("x"), "grammar": "nonsense"}, "Failed to initialize samplers: failed to parse grammar"},
		{dict{"messages": user("x"), "grammar": someGrammar, "tools": toolBody("")["tools"]}, "Cannot use custom grammar constraints with tools."},
	} {
		resp := post(t.Context(), t, s.URL()+chatPath, js(t, c.body))
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), c.want) {
			t.Errorf("got %d %s, want 400 %s", resp.StatusCode, b, c.want)
		}
	}
}
