"""Rank tools by the words of a query.

    index                   ranks tools by the words of a query (BM25)
    synonyms                words that mean nearly the same
    words                   the words of a text

`searcher` searches the catalog with it.
"""
