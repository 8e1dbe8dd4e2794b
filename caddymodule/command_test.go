package caddymodule

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestNothingUnprintableIsShown(t *testing.T) {
	for in, want := range map[string]string{
		"box-a":              "box-a",
		"größe 漢字":           "größe 漢字",
		"\x1b[31mred\x07":    `\x1b[31mred\a`,
		"a\r\nb\tc":          `a\r\nb\tc`,
		"\u202eevil\u009b2J": `\u202eevil\u009b2J`,
		"bad\xffbyte":        `bad\ufffdbyte`,
		"\U000e0001":         `\U000e0001`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPrintableJSONMeansTheSame(t *testing.T) {
	in := []string{"größe", "\u202e\u009b", "\U000e0001", "\x1b[2J", "\u007f"}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	shown := printableJSON(b)
	if i := strings.IndexFunc(string(shown), unprintable); i >= 0 {
		t.Errorf("%q holds something unprintable at %d", shown, i)
	}
	var got []string
	if err := json.Unmarshal(shown, &got); err != nil {
		t.Fatalf("%s: %v", shown, err)
	}
	for i := range in {
		if got[i] != in[i] {
			t.Errorf("%q came back as %q", in[i], got[i])
		}
	}
}

// Every command says what it does, in Caddy's way, and how it ends.
func TestCommandsAreDescribed(t *testing.T) {
	var walk func(list []subcommand)
	walk = func(list []subcommand) {
		for _, s := range list {
			cmd := s.cobra()
			if strings.HasSuffix(s.short, ".") || s.short == "" {
				t.Errorf("%s: short is %q: want a line without a full stop", cmd.Name(), s.short)
			}
			if !strings.Contains(s.long, "Exit codes:\n  0 ") || !strings.Contains(s.long, "\n  1 ") {
				t.Errorf("%s: the exit codes are not described", cmd.Name())
			}
			if got := cmd.Args(cmd, []string{"a", "b"}); got == nil {
				t.Errorf("%s takes two arguments without a word", cmd.Name())
			}
			walk(s.below)
		}
	}
	walk(fleetCommands)
}

func TestMisspeltCommandIsAnError(t *testing.T) {
	root := &cobra.Command{Use: "caddy", SilenceErrors: true, SilenceUsage: true}
	root.SetOut(new(strings.Builder))
	root.SetErr(new(strings.Builder))
	fleet := &cobra.Command{Use: "fleet"}
	setUpFleetCommand(fleet)
	root.AddCommand(fleet)
	root.SetArgs([]string{"fleet", "sttaus"})
	if err := root.Execute(); err == nil {
		t.Error("`caddy fleet sttaus` succeeded")
	}
}
