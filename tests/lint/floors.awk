# Includes go down or stay in the same folder; siblings on one floor do not see each other.
# Input: lines "file:#include \"path\"" or "file:#include <path>".
function floor(p) {
    if (p ~ /^kld\/base\//) return 0
    if (p ~ /^(kld\/store|loaders|datasets)\//) return 1
    if (p ~ /^logits\//) return 2
    if (p ~ /^kld\/(capture|compare)\//) return 3
    if (p ~ /^kld\/nightly\//) return 4
    if (p ~ /^kld\/cli\//) return 5
    return 9
}
function folder(p) { sub(/\/[^\/]*$/, "", p); return p }
function bad(why) { printf "%s includes %s: %s\n", file, inc, why; failures++ }
{
    file = $0; sub(/:.*/, "", file)
    inc = $0; sub(/^[^:]*:[ \t]*#[ \t]*include[ \t]*/, "", inc)
    system_header = inc ~ /^</
    gsub(/[<>"]/, "", inc); sub(/[ \t].*/, "", inc)
    if (file ~ /^tests\//) next
    if (system_header) {
        if (inc ~ /^zstd/ && file !~ /^kld\/store\//) bad("only kld/store sees zstd")
        if (inc ~ /^openssl\// && file !~ /^kld\/base\//) bad("only kld/base sees OpenSSL")
        if (inc ~ /^(sys\/|unistd|pthread|fcntl|dirent|signal)/ && file !~ /^kld\/base\//) bad("only kld/base sees POSIX")
        if (inc ~ /^(cuda|cublas)/ && file !~ /^logits\/cuda\//) bad("only logits/cuda sees CUDA")
        if (inc ~ /^sqlite3/ && file !~ /^kld\/nightly\//) bad("only kld/nightly sees SQLite")
        if (inc ~ /^cblas/ && file !~ /^logits\/cpu\//) bad("only logits/cpu sees BLAS")
        next
    }
    if (folder(file) == folder(inc)) next
    if (floor(inc) > floor(file)) bad("includes go down, not up")
    else if (floor(inc) == floor(file)) {
        # logits/cpu and logits/cuda may look at the interface in logits/.
        if (folder(file) ~ /^logits\/(cpu|cuda)$/ && folder(inc) == "logits") next
        bad("same-floor siblings do not include each other")
    }
}
END { exit failures > 0 }
