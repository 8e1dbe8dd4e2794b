package linkf

import (
	"fmt"
	"strings"
	"testing"
)

func TestTokenThatIsMadeCanBeRead(t *testing.T) {
	a, b := NewToken(), NewToken()
	if a == b {
		t.Fatal("two tokens are alike")
	}
	got, err := ParseToken("  " + a + "\n")
	if err != nil || got.IsZero() {
		t.Errorf("got %v, %v; want a token", got, err)
	}
}

func TestTokenThatIsTooShortIsAnErrorThatDoesNotRepeatIt(t *testing.T) {
	for _, s := range []string{"", "hunter2", tokenA[:62], tokenA + "00", strings.Repeat("z", 64)} {
		_, err := ParseToken(s)
		if err == nil || !strings.Contains(err.Error(), "64 hexadecimal digits") {
			t.Errorf("%d characters: got %v, want an error that says what a token is", len(s), err)
		}
		if err != nil && len(s) > 3 && strings.Contains(err.Error(), s) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	k := token(t, tokenA)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, k); got != "a token" {
			t.Errorf("%s prints %q, want %q", format, got, "a token")
		}
	}
}

func TestTokensFileSaysWhoMayUseWhich(t *testing.T) {
	k, err := ParseTokens([]byte("# for the attic\n" + tokenA + " box-a box-b\r\n\n" + tokenB + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		token, identity string
		want            bool
	}{
		{tokenA, "box-a", true}, {tokenA, "box-b", true}, {tokenA, "box-c", false}, {tokenB, "box-c", true},
	} {
		e, ok := k.find(newPreamble(RoleNode, token(t, c.token), [nonceLen]byte{9}))
		if err := e.allows(c.identity); !ok || (err == nil) != c.want {
			t.Errorf("%s: found %v, allowed %v; want %v", c.identity, ok, err, c.want)
		}
	}
	if _, ok := k.find(newPreamble(RoleNode, Token{}, [nonceLen]byte{9})); ok {
		t.Error("a node without a token was found")
	}
}

func TestErrorsOfATokensFileNameTheLineAndNotTheToken(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no token",
		"# nothing\n":                   "no token",
		tokenA + "\nabc box":            "line 2",
		tokenA + " a\n" + tokenA + " b": "line 2",
	} {
		_, err := ParseTokens([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), tokenA) {
			t.Errorf("%q: got %v, want %q and no token", text, err, want)
		}
	}
}

func FuzzTokens(f *testing.F) {
	f.Add([]byte(tokenA + " box\n#x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if k, err := ParseTokens(data); (err == nil) != (k != nil && len(k.entries) > 0) {
			t.Fatalf("got %v, %v", k, err)
		}
	})
}
