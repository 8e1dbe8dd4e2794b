package slotlog

import (
	"strings"
	"testing"
)

func TestSourcesThatCannotBeAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		o    SourceOptions
		want string // empty: it is fine
	}{
		"file":              {SourceOptions{Path: "/var/log/s.log"}, ""},
		"file, empty":       {SourceOptions{}, "empty"},
		"file, relative":    {SourceOptions{Path: "s.log"}, "relative"},
		"file, folder":      {SourceOptions{Path: "/var/log/"}, "folder"},
		"file, zero byte":   {SourceOptions{Path: "/var\x00"}, "zero byte"},
		"file and unit":     {SourceOptions{Path: "/a", Target: "u"}, "takes no target"},
		"fifo, relative":    {SourceOptions{Kind: SourceFIFO, Path: "f"}, "relative"},
		"stdin":             {SourceOptions{Kind: SourceStdin}, ""},
		"stdin of a path":   {SourceOptions{Kind: SourceStdin, Path: "/a"}, "takes no path"},
		"unit":              {SourceOptions{Kind: SourceJournald, Target: `llama@box-1:a\x2d.service`}, ""},
		"unit, empty":       {SourceOptions{Kind: SourceJournald}, "empty"},
		"unit, option":      {SourceOptions{Kind: SourceJournald, Target: "--file=/etc/shadow"}, "begins with"},
		"unit, pattern":     {SourceOptions{Kind: SourceJournald, Target: "llama*"}, `holds '*'`},
		"unit, blank":       {SourceOptions{Kind: SourceJournald, Target: "a b"}, `holds ' '`},
		"unit, long":        {SourceOptions{Kind: SourceJournald, Target: strings.Repeat("a", 254)}, "254 bytes"},
		"container":         {SourceOptions{Kind: SourceDocker, Target: "llama_1.a-B"}, ""},
		"container, option": {SourceOptions{Kind: SourceDocker, Target: "-H=tcp"}, "begins with"},
		"container, shell":  {SourceOptions{Kind: SourceDocker, Target: "a$(id)"}, `holds '$'`},
		"pod":               {SourceOptions{Kind: SourceKubectl, Target: "llama-0"}, ""},
		"pod, type":         {SourceOptions{Kind: SourceKubectl, Target: "deploy/a"}, `holds '/'`},
		"command":           {SourceOptions{Kind: SourceCommand, Args: []string{"ssh", "-T", "box"}}, ""},
		"command, none":     {SourceOptions{Kind: SourceCommand}, "empty"},
		"command, dash":     {SourceOptions{Kind: SourceCommand, Args: []string{"-x"}}, "begins with a dash"},
		"command, words":    {SourceOptions{Kind: SourceCommand, Args: make([]string, 65)}, "empty"},
		"unknown":           {SourceOptions{Kind: "syslog"}, "unknown kind"},
	} {
		err := tt.o.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

func TestKeyIsEqualForOneLogAlone(t *testing.T) {
	a := SourceOptions{Path: "/var/log/s.log"}
	for _, b := range []SourceOptions{{Kind: SourceFile, Path: "/var/log//s.log", Name: "x"}, {Path: "/var/./log/s.log"}} {
		if a.Key() != b.Key() {
			t.Errorf("%+v: got another key than %+v", b, a)
		}
	}
	for _, b := range []SourceOptions{
		{Path: "/var/log/t.log"},
		{Kind: SourceFIFO, Path: "/var/log/s.log"},
		{Kind: SourceCommand, Args: []string{"/var/log/s.log"}},
	} {
		if a.Key() == b.Key() {
			t.Errorf("%+v: got the key of %+v", b, a)
		}
	}
	one, two := SourceOptions{Kind: SourceCommand, Args: []string{"a", "b"}}, SourceOptions{Kind: SourceCommand, Args: []string{"a b"}}
	if one.Key() == two.Key() {
		t.Errorf("got one key for %v and %v", one.Args, two.Args)
	}
}

func TestNameOfACommandTellsNoArgument(t *testing.T) {
	o := SourceOptions{Kind: SourceCommand, Args: []string{"ssh", "-i", "secret"}}
	if got := o.String(); got != "command ssh" {
		t.Errorf("got %q, want %q", got, "command ssh")
	}
}
