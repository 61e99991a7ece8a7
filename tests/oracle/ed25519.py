"""Checks Ed25519 signatures (RFC 8032, section 5.1.7) with integers alone; slow, and for public data only."""
import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of -1

def decode(b):
    """A point (x, y) of 32 bytes, or None."""
    y, sign = int.from_bytes(b, "little") & (2**255 - 1), b[31] >> 7
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * ROOT % P
    if x * x % P != square or (x == 0 and sign):
        return None
    return (P - x if x & 1 != sign else x), y

def add(a, b):
    (x, y), (u, v) = a, b
    t = D * x * y * u * v % P
    return (x * v + y * u) * pow(1 + t, -1, P) % P, (y * v + x * u) * pow(1 - t, -1, P) % P

def times(n, a):
    out = (0, 1)
    while n:
        if n & 1:
            out = add(out, a)
        a, n = add(a, a), n >> 1
    return out

BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))

def verify(key, signature, message):
    """Whether 64 bytes are a signature of the key (32 bytes) over the message."""
    a, r, s = decode(key), decode(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= ORDER or len(signature) != 64:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    return times(s, BASE) == add(r, times(h, a))

def key_id(key):
    return hashlib.sha256(key).hexdigest()[:16]
