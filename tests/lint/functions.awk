# A function body longer than 80 lines is an error.  Relies on the tree's format: a body
# ends with a "}" in column 1, and its first line ends with "{" and starts in column 1.
FNR == 1 { start = 0 }
/^[A-Za-z_].*[)] *\{$/ || (/^ .*[)] *\{$/ && header) { start = FNR; name = header ? header : $0 }
{ header = (/^[A-Za-z_].*\(/ && !/[;{]$/) ? $0 : (header && !/[;{}]$/ ? header : "") }
/^\}/ {
    if (start && FNR - start > 80) {
        printf "%s:%d: function of %d lines (80 at most): %s\n", FILENAME, start, FNR - start, name
        bad++
    }
    start = 0
}
END { exit bad > 0 }
